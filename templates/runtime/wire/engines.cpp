// Which engine joins machines, on which interface: COLLC_NET.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "wire/hca_filter.h"
#include "wire/ucx_worker.h"
#include "wire/wire.h"

namespace collc {
namespace {

constexpr char kRdmaFolder[] = "/sys/class/infiniband/";

bool exists(const std::string &path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0;
}

std::vector<std::string> names_in(const std::string &folder) {
  std::vector<std::string> names;
  DIR *const open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent *entry = readdir(open))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

// The ports of an RDMA device as UCX names them, "mlx5_0:1"; none if `name` is no device. It may name one port itself.
std::vector<std::string> rdma_ports(const std::string &name) {
  const size_t colon = name.find(':');
  const std::string device = name.substr(0, colon);
  if (device.empty() || device.find('/') != std::string::npos || device[0] == '.') return {};
  const std::string folder = kRdmaFolder + device + "/ports/";
  if (colon != std::string::npos)
    return exists(folder + name.substr(colon + 1)) ? std::vector{name} : std::vector<std::string>();
  std::vector<std::string> ports;
  for (const std::string &port : names_in(folder)) ports.push_back(device + ":" + port);
  return ports;
}

// COLLC_NET, taken apart.
struct Chosen {
  std::string engine = "tcp", interface;
  size_t interfaces = 0;
  std::vector<std::string> ports;  // of RDMA devices, for the engine ucx
};

Chosen read_net() {
  Chosen chosen;
  std::vector<std::string> named = read_list("COLLC_NET");
  if (!named.empty()) {
    const size_t colon = named[0].find(':');
    // Of "mlx5_0:1", the number is that of a port.
    if (colon != std::string::npos && rdma_ports(named[0]).empty()) {
      chosen.engine = named[0].substr(0, colon);
      named[0].erase(0, colon + 1);
    } else if (named[0] == "ucx" || named[0] == "tcp") {
      chosen.engine = named[0];
      named[0].clear();
    }
  }
  for (const std::string &name : named) {
    const std::vector<std::string> ports = chosen.engine == "ucx" ? rdma_ports(name) : std::vector<std::string>();
    chosen.ports.insert(chosen.ports.end(), ports.begin(), ports.end());
    if (!ports.empty() || name.empty()) continue;
    chosen.interface = name;
    ++chosen.interfaces;
  }
  return chosen;
}

}  // namespace

Status make_engine(std::unique_ptr<WireEngine> *made) {
  Chosen chosen = read_net();
  if (chosen.engine != "tcp" && chosen.engine != "ucx")
    return fail(ncclInvalidUsage, "COLLC_NET: no engine %.40s; tcp and ucx are there", printable(chosen.engine).c_str());
  if (chosen.interfaces > 1)
    return fail(ncclInvalidUsage, "COLLC_NET names %zu network interfaces; machines meet over one", chosen.interfaces);
  const char *const list = read_text("NCCL_IB_HCA");
  if (list != nullptr && !chosen.ports.empty())
    log(LogLevel::kInfo, "NCCL_IB_HCA is not followed: COLLC_NET names RDMA devices");
  if (list != nullptr && chosen.engine == "ucx" && chosen.ports.empty()) {
    std::vector<std::string> all;
    for (const std::string &device : names_in(kRdmaFolder))
      for (const std::string &port : rdma_ports(device)) all.push_back(port);
    chosen.ports = passing_ports(list, all);
    if (chosen.ports.empty() && !all.empty()) return fail(ncclInvalidUsage, "no RDMA port here passes NCCL_IB_HCA=%.80s", list);
  }
  std::string ports;
  for (const std::string &port : chosen.ports) ports += (ports.empty() ? "" : ",") + port;
  *made = chosen.engine == "tcp" ? make_tcp_engine(chosen.interface, "tcp") : make_ucx_engine(chosen.interface, ports);
  return {};
}

void end_engines() { UcxTurn::end(); }

Status silence_seconds(double *seconds) { return read_number("COLLC_NET_TIMEOUT", 1, 1e6, 60, seconds); }

}  // namespace collc
