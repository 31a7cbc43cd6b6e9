// Lists of RDMA ports as NCCL_IB_HCA takes them (NCCL's user guide, "Environment Variables"; parseStringList and matchIfList in its
// src/misc/utils.cc). collc/network/hca.py is the same rule in Python; a test compares the two.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "base/nccl_list.h"

namespace collc {

// Entries with commas between: a prefix of devices, and after a colon the number of a port, compared as a number; `=` before the
// list: whole names of devices; `^` before it: all others. Without entries every port is named, so that `^` alone leaves none.
class HcaFilter {
 public:
  explicit HcaFilter(const char *text) : list_(text) {
    for (const std::string &entry : list_.entries)
      if (const size_t colon = entry.find(':'); colon != 0) entries_.push_back({entry.substr(0, colon), port_of(entry)});
  }

  // Whether it says which ports to use, not only which ones not to.
  bool chooses() const { return !list_.excludes && !entries_.empty(); }
  // Whether a port ("mlx5_0:1") may be used.
  bool takes(const std::string &port) const {
    const bool named = entries_.empty() || place_of(port) < entries_.size();
    return named != list_.excludes;
  }
  // The first entry that names a port, counted from 0; as many as there are where none does.
  size_t place_of(const std::string &port) const {
    const std::string device = port.substr(0, port.find(':'));
    const long number = port_of(port);
    const auto names = [&](const Entry &entry) {
      const bool same = list_.whole ? device == entry.device : device.compare(0, entry.device.size(), entry.device) == 0;
      return same && (entry.port == kAnyPort || entry.port == number);
    };
    return static_cast<size_t>(std::find_if(entries_.begin(), entries_.end(), names) - entries_.begin());
  }

 private:
  static constexpr long kAnyPort = -1;
  struct Entry {
    std::string device;
    long port;
  };

  // What follows the colon as C reads numbers: 0, which no port has, where it is none.
  static long port_of(const std::string &text) {
    const size_t colon = text.find(':');
    return colon == std::string::npos ? kAnyPort : std::strtol(text.c_str() + colon + 1, nullptr, 10);
  }

  NcclList list_;
  std::vector<Entry> entries_;
};

// Those of `ports` ("mlx5_0:1") that pass.
inline std::vector<std::string> passing_ports(const char *list, const std::vector<std::string> &ports) {
  const HcaFilter filter(list);
  std::vector<std::string> passing;
  std::copy_if(ports.begin(), ports.end(), std::back_inserter(passing),
               [&](const std::string &port) { return filter.takes(port); });
  return passing;
}

}  // namespace collc
