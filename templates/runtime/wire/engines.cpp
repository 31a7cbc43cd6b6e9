// Reads COLLC_NET: which engine joins machines, and on which interfaces.
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "wire/cards.h"
#include "wire/foreign.h"
#include "wire/hca_filter.h"
#include "wire/tls.h"
#include "wire/wire.h"

namespace collc {
namespace {

constexpr char kRdmaFolder[] = "/sys/class/infiniband/";

bool exists(const std::string &path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0;
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
struct Chosen {
  std::string engine = "tcp";
  std::vector<std::string> interfaces;  // each is a rail
  std::vector<std::string> ports;  // of RDMA devices, for the engine ucx
};

Chosen read_net() {
  Chosen chosen;
  std::vector<std::string> named = read_list("COLLC_NET");
  if (!named.empty()) {
    const size_t colon = named[0].find(':');
    // In "mlx5_0:1" the number is a port.
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
    chosen.interfaces.push_back(name);
  }
  // "=" before a list applies to each name. "^" excludes names and applies to the whole list, so the list stays one
  // interface.
  std::vector<std::string> &names = chosen.interfaces;
  const char sign = names.empty() ? '\0' : names[0][0];
  for (size_t i = 1; i < names.size(); ++i) {
    if (sign == '=') names[i] = "=" + names[i];
    if (sign == '^') names[0] += "," + names[i];
  }
  if (sign == '^') names.resize(1);
  return chosen;
}

// Applies NCCL_IB_HCA if no variable of collc selects interfaces: either selects the interfaces of the devices in the list,
// in its order, or excludes those that it leaves out.
void read_hcas(const char *list, TcpInterfaces *interfaces) {
  if (list == nullptr || !interfaces->lists.empty() || read_text("COLLC_SOCKET_IFNAME") != nullptr) return;
  const HcaFilter filter(list);
  const std::vector<RdmaInterface> all = find_rdma_interfaces(kSysFolder);
  for (const RdmaInterface &one : all) {
    std::vector<std::string> &barred = interfaces->barred;
    if (!filter.takes(one.port) && std::find(barred.begin(), barred.end(), one.interface) == barred.end())
      barred.push_back(one.interface);
  }
  if (!filter.chooses()) return;
  for (const PlacedInterface &one : place_named(filter, all)) {
    interfaces->named.push_back(one.name);
    interfaces->places.push_back(one.place);
  }
}

}  // namespace

Status make_engine(const WirePlace &place, std::unique_ptr<WireEngine> *made) {
  Chosen chosen = read_net();
  if (chosen.engine != "tcp" && chosen.engine != "ucx")
    return fail(ncclInvalidUsage, "COLLC_NET: there is no engine %.40s; name tcp or ucx", printable(chosen.engine).c_str());
  const size_t most = chosen.engine == "tcp" ? kMostRails : 1;
  if (chosen.interfaces.size() > most)
    return fail(
        ncclInvalidUsage, "COLLC_NET names %zu network interfaces; machines meet over %s", chosen.interfaces.size(),
        most == 1 ? format("one with the engine %s", chosen.engine.c_str()).c_str() : format("%zu at most", most).c_str());
  double streams = 1;
  COLLC_RETURN_IF_FAILED(read_number("COLLC_NET_STREAMS", 1, kMostRails, 1, &streams));
  uint32_t tls = 0;
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_NET_TLS", 1, &tls));
  if (tls != 0 && chosen.engine != "tcp")
    return fail(ncclInvalidUsage, "COLLC_NET_TLS: the engine %s does not encrypt; COLLC_NET=tcp does", chosen.engine.c_str());
  if (tls != 0) COLLC_RETURN_IF_FAILED(TlsChannel::load());
  const char *const list = read_text("NCCL_IB_HCA");
  if (list != nullptr && !chosen.ports.empty())
    log(LogLevel::kInfo, "NCCL_IB_HCA is not followed: COLLC_NET names RDMA devices");
  if (list != nullptr && chosen.engine == "ucx" && chosen.ports.empty()) {
    std::vector<std::string> all;
    for (const std::string &device : list_folder(kRdmaFolder))
      for (const std::string &port : rdma_ports(device)) all.push_back(port);
    chosen.ports = passing_ports(list, all);
    if (chosen.ports.empty() && !all.empty()) return fail(ncclInvalidUsage, "no RDMA port here passes NCCL_IB_HCA=%.80s", list);
  }
  std::string ports;
  for (const std::string &port : chosen.ports) ports += (ports.empty() ? "" : ",") + port;
  TcpInterfaces interfaces{chosen.interfaces, {}, {}};
  if (chosen.engine == "tcp") read_hcas(list, &interfaces);
  const uint32_t nstreams = static_cast<uint32_t>(streams);
  const size_t nrails = std::max<size_t>(1, chosen.interfaces.size()) * nstreams;
  if (nrails > kMostRails)
    return fail(ncclInvalidUsage, "COLLC_NET_STREAMS: %zu connections with each machine, %u at most", nrails, kMostRails);
  const std::string interface = chosen.interfaces.empty() ? "" : chosen.interfaces[0];
  if (chosen.engine == "tcp")
    *made = make_tcp_engine(interfaces, place, nstreams, tls != 0, "tcp");
  else
    *made = make_ucx_engine(interface, ports);
  return {};
}

void end_engines(int64_t deadline_ms) {
  ForeignTurn::end(deadline_ms);
  TlsChannel::end();
}

Status silence_seconds(double *seconds) { return read_number("COLLC_NET_TIMEOUT", 1, 1e6, 60, seconds); }

}  // namespace collc
