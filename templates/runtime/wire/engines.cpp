// Which engine joins machines, on which interface: COLLC_NET.
#include <dirent.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/environment.h"
#include "wire/ucx_worker.h"
#include "wire/wire.h"

namespace collc {
namespace {

constexpr char kRdmaFolder[] = "/sys/class/infiniband/";

bool exists(const std::string &path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0;
}

// The ports of an RDMA device as UCX names them, "mlx5_0:1"; "" if `name` is none. It may name one port itself.
std::string rdma_ports(const std::string &name) {
  const size_t colon = name.find(':');
  const std::string device = name.substr(0, colon);
  if (device.empty() || device.find('/') != std::string::npos || device[0] == '.') return "";
  const std::string ports = kRdmaFolder + device + "/ports/";
  if (colon != std::string::npos) return exists(ports + name.substr(colon + 1)) ? name : "";
  std::string found;
  DIR *const folder = opendir(ports.c_str());
  if (folder == nullptr) return found;
  while (const dirent *entry = readdir(folder))
    if (entry->d_name[0] != '.') found += (found.empty() ? "" : ",") + device + ":" + entry->d_name;
  closedir(folder);
  return found;
}

}  // namespace

Status make_engine(std::unique_ptr<WireEngine> *made) {
  std::vector<std::string> named = read_list("COLLC_NET");
  std::string engine = "tcp";
  if (!named.empty()) {
    const size_t colon = named[0].find(':');
    // Of "mlx5_0:1", the number is that of a port.
    if (colon != std::string::npos && rdma_ports(named[0]).empty()) {
      engine = named[0].substr(0, colon);
      named[0].erase(0, colon + 1);
    } else if (named[0] == "ucx" || named[0] == "tcp") {
      engine = named[0];
      named[0].clear();
    }
  }
  if (engine != "tcp" && engine != "ucx")
    return fail(ncclInvalidUsage, "COLLC_NET: no engine %.40s; tcp and ucx are there", printable(engine).c_str());
  std::string devices, interface;
  size_t interfaces = 0;
  for (const std::string &name : named) {
    const std::string ports = engine == "ucx" ? rdma_ports(name) : "";
    if (!ports.empty()) {
      devices += (devices.empty() ? "" : ",") + ports;
    } else if (!name.empty()) {
      interface = name;
      ++interfaces;
    }
  }
  if (interfaces > 1)
    return fail(ncclInvalidUsage, "COLLC_NET names %zu network interfaces; machines meet over one", interfaces);
  *made = engine == "tcp" ? make_tcp_engine(interface, "tcp") : make_ucx_engine(interface, devices);
  return {};
}

void end_engines() { UcxTurn::end(); }

Status silence_seconds(double *seconds) { return read_number("COLLC_NET_TIMEOUT", 1, 1e6, 60, seconds); }

}  // namespace collc
