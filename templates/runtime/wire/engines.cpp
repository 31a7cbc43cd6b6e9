// Reads COLLC_NET: which engine joins machines, and on which interfaces.
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "wire/nics.h"
#include "wire/ucx_lock.h"
#include "wire/hca_filter.h"
#include "wire/tls.h"
#include "wire/wire.h"

namespace collc {
namespace {

constexpr char kRdmaFolder[] = "/sys/class/infiniband/";

bool exists(const std::string &path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

// Returns the ports of an RDMA device as UCX names them, "mlx5_0:1"; nothing if `name` is not a device. `name` may include a
// port.
std::vector<std::string> rdma_ports(const std::string &name) {
  const size_t colon = name.find(':');
  const std::string device = name.substr(0, colon);
  if (device.empty() || device.find('/') != std::string::npos || device[0] == '.') return {};
  const std::string folder = kRdmaFolder + device + "/ports/";
  if (colon != std::string::npos)
    return exists(folder + name.substr(colon + 1)) ? std::vector{name} : std::vector<std::string>();
  std::vector<std::string> ports;
  for (const std::string &port : list_folder(folder)) ports.push_back(device + ":" + port);
  return ports;
}

// The parts of COLLC_NET.
struct NetChoice {
  std::string engine = "tcp";
  std::vector<std::string> interfaces;  // each is a rail
  std::vector<std::string> ports;  // of RDMA devices, for the engine ucx
};

NetChoice read_net() {
  NetChoice choice;
  std::vector<std::string> words = read_list("COLLC_NET");
  if (!words.empty()) {
    const size_t colon = words[0].find(':');
    // In "mlx5_0:1" the number is a port.
    if (colon != std::string::npos && rdma_ports(words[0]).empty()) {
      choice.engine = words[0].substr(0, colon);
      words[0].erase(0, colon + 1);
    } else if (words[0] == "ucx" || words[0] == "tcp") {
      choice.engine = words[0];
      words[0].clear();
    }
  }
  for (const std::string &name : words) {
    const std::vector<std::string> ports = choice.engine == "ucx" ? rdma_ports(name) : std::vector<std::string>();
    choice.ports.insert(choice.ports.end(), ports.begin(), ports.end());
    if (!ports.empty() || name.empty()) continue;
    choice.interfaces.push_back(name);
  }
  // "=" before a list applies to each name. "^" excludes names and applies to the whole list, so the list stays one
  // interface.
  std::vector<std::string> &names = choice.interfaces;
  const char sign = names.empty() ? '\0' : names[0][0];
  for (size_t i = 1; i < names.size(); ++i) {
    if (sign == '=') names[i] = "=" + names[i];
    if (sign == '^') names[0] += "," + names[i];
  }
  if (sign == '^') names.resize(1);
  return choice;
}

// Applies NCCL_IB_HCA if no variable of collc selects interfaces: either selects the interfaces of the devices in the list,
// in its order, or excludes those that it leaves out.
void read_hcas(const char *list, TcpInterfaces *interfaces) {
  if (list == nullptr || !interfaces->lists.empty() || read_text("COLLC_SOCKET_IFNAME") != nullptr) return;
  const HcaFilter filter(list);
  const std::vector<RdmaInterface> all = find_rdma_interfaces(kSysFolder);
  for (const RdmaInterface &port : all) {
    std::vector<std::string> &excluded = interfaces->excluded;
    if (!filter.takes(port.port) && std::find(excluded.begin(), excluded.end(), port.interface) == excluded.end())
      excluded.push_back(port.interface);
  }
  if (!filter.chooses()) return;
  for (const PlacedInterface &port : place_named(filter, all)) {
    interfaces->named.push_back(port.name);
    interfaces->places.push_back(port.place);
  }
}

}  // namespace

Status make_engine(const WirePlace &place, std::unique_ptr<WireEngine> *engine) {
  NetChoice choice = read_net();
  if (choice.engine != "tcp" && choice.engine != "ucx")
    return fail(ncclInvalidUsage, "COLLC_NET: there is no engine %.40s; name tcp or ucx", printable(choice.engine).c_str());
  const size_t most = choice.engine == "tcp" ? kMaxRails : 1;
  if (choice.interfaces.size() > most)
    return fail(
        ncclInvalidUsage, "COLLC_NET names %zu network interfaces; machines meet over %s", choice.interfaces.size(),
        most == 1 ? format("one with the engine %s", choice.engine.c_str()).c_str() : format("%zu at most", most).c_str());
  double streams = 1;
  COLLC_RETURN_IF_FAILED(read_number("COLLC_NET_STREAMS", 1, kMaxRails, 1, &streams));
  uint32_t tls = 0;
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_NET_TLS", 1, &tls));
  if (tls != 0 && choice.engine != "tcp")
    return fail(ncclInvalidUsage, "COLLC_NET_TLS: the engine %s does not encrypt; COLLC_NET=tcp does", choice.engine.c_str());
  if (tls != 0) COLLC_RETURN_IF_FAILED(TlsChannel::load());
  const char *const list = read_text("NCCL_IB_HCA");
  if (list != nullptr && !choice.ports.empty())
    log(LogLevel::kInfo, "NCCL_IB_HCA is not followed: COLLC_NET names RDMA devices");
  if (list != nullptr && choice.engine == "ucx" && choice.ports.empty()) {
    std::vector<std::string> all;
    for (const std::string &device : list_folder(kRdmaFolder))
      for (const std::string &port : rdma_ports(device)) all.push_back(port);
    choice.ports = passing_ports(list, all);
    if (choice.ports.empty() && !all.empty()) return fail(ncclInvalidUsage, "no RDMA port here passes NCCL_IB_HCA=%.80s", list);
  }
  std::string ports;
  for (const std::string &port : choice.ports) ports += (ports.empty() ? "" : ",") + port;
  TcpInterfaces interfaces{choice.interfaces, {}, {}};
  if (choice.engine == "tcp") read_hcas(list, &interfaces);
  const uint32_t nstreams = static_cast<uint32_t>(streams);
  const size_t nrails = std::max<size_t>(1, choice.interfaces.size()) * nstreams;
  if (nrails > kMaxRails)
    return fail(ncclInvalidUsage, "COLLC_NET_STREAMS: %zu connections with each machine, %u at most", nrails, kMaxRails);
  const std::string interface = choice.interfaces.empty() ? "" : choice.interfaces[0];
  if (choice.engine == "tcp")
    *engine = make_tcp_engine(interfaces, place, nstreams, tls != 0, "tcp");
  else
    *engine = make_ucx_engine(interface, ports);
  return {};
}

void end_engines(int64_t deadline_ms) {
  UcxLock::close(deadline_ms);
  TlsChannel::end();
}

Status silence_seconds(double *seconds) { return read_number("COLLC_NET_TIMEOUT", 1, 1e6, 60, seconds); }

}  // namespace collc
