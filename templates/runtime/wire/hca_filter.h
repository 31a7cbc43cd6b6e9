// Lists of RDMA ports as NCCL_IB_HCA takes them (NCCL's user guide, "Environment Variables").
#pragma once
#include <string>
#include <vector>

#include "bootstrap/interface_filter.h"

namespace collc {

// Those of `ports` ("mlx5_0:1") that pass: prefixes of devices or ports with commas between; `=` before the list: whole names;
// `^` before it: all others.
inline std::vector<std::string> passing_ports(const char *list, const std::vector<std::string> &ports) {
  const InterfaceFilter filter(list);
  std::vector<std::string> passing;
  for (const std::string &port : ports) {
    const bool by_device = filter.takes(port.substr(0, port.find(':')).c_str()), by_port = filter.takes(port.c_str());
    if (filter.chooses() ? by_device || by_port : by_device && by_port) passing.push_back(port);
  }
  return passing;
}

}  // namespace collc
