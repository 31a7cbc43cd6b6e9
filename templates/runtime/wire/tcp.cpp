// The engine of plain sockets: machines connect over one interface, or over each of several.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "bootstrap/sockets.h"
#include "wire/nics.h"
#include "wire/railed.h"
#include "wire/tcp_connection.h"
#include "wire/tcp_peers.h"

namespace collc {
namespace {

constexpr int kSliceMs = 20;  // interval between two polls of WireMeeting::stop
constexpr int64_t kPauseMs = 30;  // between two attempts
constexpr int64_t kRailsMs = 1000;  // after this long with a rail to each machine, the other rails may come later
// After this long without any rail, the spare is tried; the kernel has sent its request twice by then.
constexpr int64_t kSpareMs = 2000;
constexpr int64_t kAnswerMs =
    5000;  // limit for an answer if there is a spare; a later answer cannot come from one of our machines

bool contains(const std::vector<std::string> &names, const std::string &name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// An interface of a NIC that the topology or a variable names.
struct NicInterface {
  std::string name;
  uint32_t nic;  // number of the NIC, counted from 1
  uint32_t fabric;  // as Card::network
};

const NicInterface *find_nic(const std::vector<NicInterface> &nics, const std::string &name) {
  const auto found = std::find_if(nics.begin(), nics.end(), [&name](const NicInterface &nic) { return nic.name == name; });
  return found == nics.end() ? nullptr : &*found;
}

class TcpSetup {
 public:
  TcpSetup(const WireMeeting &meeting, std::shared_ptr<TcpListeners> listeners, bool tls)
      : meeting_(meeting), listeners_(std::move(listeners)), tls_(tls) {}

  Status run(std::vector<std::unique_ptr<WireConnection>> *connections) {
    const auto peers = std::make_shared<TcpPeers>();
    COLLC_RETURN_IF_FAILED(peers->read(meeting_, tls_));
    peers_ = peers;
    if (peers_->nrails() > 1 || peers_->ninterfaces() > 1) log(LogLevel::kInfo, "%s", describe_rails().c_str());
    listeners_->expect(peers_);
    sockets_.resize(peers_->nmachines());
    for (auto &sockets : sockets_) sockets.resize(peers_->nways());
    std::vector<TcpConnector> connectors;
    for (uint32_t to = 0; to < meeting_.self; ++to)
      for (uint32_t way = 0; way < peers_->nways(); ++way) connectors.emplace_back(peers_, to, way, 0);
    start_ms_ = now_ms();
    const int64_t deadline = start_ms_ + static_cast<int64_t>(meeting_.seconds * 1000);
    int64_t join_time_ms = 0;  // since when there is a rail to each machine
    while (!are_all_complete()) {
      if (join_time_ms == 0 && has_rail_or_spare_to_all()) join_time_ms = now_ms();
      if (join_time_ms != 0 && now_ms() - join_time_ms > kRailsMs) break;
      if (meeting_.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
      if (now_ms() >= deadline) return too_late_to_meet();
      poll_once(connectors);
    }
    connect(connectors, connections);
    for (TcpConnector &connector : connectors) connector.hang_up();
    return {};
  }

 private:
  std::string describe_rails() const {
    std::string text = format("%zu of %zu interfaces join machines, with %u connections each:",
                              size_t{peers_->nrails() / peers_->address(meeting_.self, 0).streams}, peers_->ninterfaces(),
                              peers_->address(meeting_.self, 0).streams);
    for (uint32_t rail = 0; rail < peers_->nrails(); rail += peers_->address(meeting_.self, 0).streams)
      text += format(" %s%s", peers_->address(meeting_.self, rail).interface,
                     peers_->address(meeting_.self, rail).nic != 0 ? " (of the library's topology)" : "");
    return text;
  }

  // Returns whether a connection attempt may begin or go on. Of a rail and the spare, only one may have sent a hello at a
  // time, so that both ends know which of them joins the machines.
  bool may_call(const std::vector<TcpConnector> &connectors, const TcpConnector &connector) const {
    const bool is_spare = peers_->is_spare(connector.rail());
    if (sockets_[connector.to()][connector.rail()].attempt != 0) return false;
    if (is_spare && (has_rail(connector.to()) || !(connector.is_connecting() || is_time_for_spare(connectors, connector.to()))))
      return false;
    return connector.is_waiting() || std::none_of(connectors.begin(), connectors.end(), [&](const TcpConnector &candidate) {
             return candidate.to() == connector.to() && peers_->is_spare(candidate.rail()) != is_spare &&
                    candidate.is_waiting();
           });
  }

  // Returns whether no rail accepts a connection: all are refused, or the meeting has taken a while.
  bool is_time_for_spare(const std::vector<TcpConnector> &connectors, uint32_t to) const {
    return now_ms() - start_ms_ >= kSpareMs ||
           std::all_of(connectors.begin(), connectors.end(), [&](const TcpConnector &candidate) {
             return candidate.to() != to || peers_->is_spare(candidate.rail()) || candidate.is_refused();
           });
  }

  void poll_once(std::vector<TcpConnector> &connectors) {
    const int64_t poll_start_ms = now_ms();
    std::vector<pollfd> polled;
    listeners_->add_to(&polled);
    const size_t accepting = polled.size();
    for (TcpConnector &connector : connectors) {
      if (!may_call(connectors, connector)) {
        if (peers_->is_spare(connector.rail()) && has_rail(connector.to())) connector.hang_up();
        polled.push_back({-1, 0, 0});
        continue;
      }
      connector.prepare(kPauseMs);
      connector.add_to(&polled);
    }
    const bool has_polled = poll(polled.data(), polled.size(), kSliceMs) >= 0;
    for (pollfd &entry : polled)
      if (!has_polled) entry.revents = 0;
    const pollfd *at = polled.data();
    listeners_->handle_events(&at);
    for (uint32_t m = meeting_.self + 1; m < sockets_.size(); ++m)
      for (uint32_t rail = 0; rail < peers_->nways(); ++rail) {
        TcpSocket accepted = listeners_->take(m, rail);
        if (accepted.attempt != 0) sockets_[m][rail] = std::move(accepted);
      }
    for (size_t i = 0; i < connectors.size(); ++i) {
      TcpSocket &socket = sockets_[connectors[i].to()][connectors[i].rail()];
      // Connections that were made earlier in this round may forbid another hello.
      if (polled[accepting + i].revents != 0) {
        if (may_call(connectors, connectors[i]) && connectors[i].advance(&socket.fd)) socket.attempt = connectors[i].attempt();
      } else if (has_polled && has_spare()) {
        // Without a spare no limit applies to an attempt, because the other process may be stopped, and the connection that
        // it accepts last counts.
        connectors[i].give_up(kAnswerMs, poll_start_ms);
      }
      if (!connectors[i].last_error().empty()) last_error_ = connectors[i].last_error();
    }
  }

  bool has_spare() const { return peers_->nways() > peers_->nrails(); }

  bool has_rail(size_t machine) const {
    const auto begin = sockets_[machine].begin();
    return std::any_of(begin, begin + peers_->nrails(), [](const auto &socket) { return socket.attempt != 0; });
  }

  bool is_complete(size_t machine) const {
    const auto begin = sockets_[machine].begin();
    return std::all_of(begin, begin + peers_->nrails(), [](const auto &socket) { return socket.attempt != 0; });
  }

  bool are_all_complete() const {
    for (size_t m = 0; m < sockets_.size(); ++m)
      if (m != meeting_.self && !is_complete(m)) return false;
    return true;
  }

  bool has_rail_or_spare_to_all() const {
    for (size_t m = 0; m < sockets_.size(); ++m)
      if (m != meeting_.self &&
          std::none_of(sockets_[m].begin(), sockets_[m].end(), [](const auto &socket) { return socket.attempt != 0; }))
        return false;
    return true;
  }

  // Names the missing connections by the interfaces at both ends.
  Status too_late_to_meet() const {
    std::string missing_connections;
    uint32_t first_missing = kNoRail;
    for (uint32_t m = 0; m < sockets_.size(); ++m)
      for (uint32_t rail = 0; m != meeting_.self && rail < sockets_[m].size(); ++rail) {
        if (sockets_[m][rail].attempt != 0 || (peers_->is_spare(rail) && has_rail(m))) continue;
        missing_connections += (missing_connections.empty() ? "" : ", ") + peers_->name_of(m, rail);
        first_missing = std::min(first_missing, rail);
      }
    return fail(ncclSystemError, "no connection after %.0f s from %s with %s%s", meeting_.seconds,
                peers_->name_of(meeting_.self, first_missing).c_str(), missing_connections.c_str(),
                last_error_.empty() ? ": is a firewall between, or is COLLC_NET wrong?" : (" (" + last_error_ + ")").c_str());
  }

  void connect(const std::vector<TcpConnector> &connectors, std::vector<std::unique_ptr<WireConnection>> *connections) {
    std::vector<std::vector<uint64_t>> attempts(sockets_.size(), std::vector<uint64_t>(peers_->nways()));
    for (const TcpConnector &connector : connectors) attempts[connector.to()][connector.rail()] = connector.attempt();
    connections->clear();
    connections->resize(sockets_.size());
    for (uint32_t m = 0; m < sockets_.size(); ++m) {
      if (m == meeting_.self) continue;
      // Both ends know the number of rails, but not which of them the other end has by now.
      if (peers_->nways() > 1) {
        (*connections)[m] =
            std::make_unique<RailedConnection>(peers_, listeners_, m, std::move(sockets_[m]), attempts[m], meeting_.silence);
        continue;
      }
      auto socket = peers_->connect(m, 0, std::move(sockets_[m][0]), meeting_.silence);
      if (peers_->nmachines() > 2) socket->share_link();
      (*connections)[m] = std::move(socket);
    }
  }

  const WireMeeting &meeting_;
  std::shared_ptr<TcpListeners> listeners_;
  bool tls_;
  std::shared_ptr<const TcpPeers> peers_;
  std::vector<std::vector<TcpSocket>> sockets_;  // by machine and rail
  std::string last_error_;  // why the last attempt failed
  int64_t start_ms_ = 0;
};

class TcpEngine final : public WireEngine {
 public:
  TcpEngine(const TcpInterfaces &interfaces, const WirePlace &place, uint32_t streams, bool tls, const char *engine_name)
      : interfaces_(interfaces), place_(place), streams_(streams), tls_(tls), engine_name_(engine_name) {}
  const char *name() const override { return "tcp"; }

  Status listen(Bytes *address) override {
    unsigned char challenge[sizeof(TcpAddress::challenge)];
    COLLC_RETURN_IF_FAILED(random_bytes(challenge, sizeof challenge));
    std::vector<TcpAddress> local_addresses;
    COLLC_RETURN_IF_FAILED(interfaces_.lists.empty() ? select_found(&local_addresses) : select_listed(&local_addresses));
    if (local_addresses.size() > 1 && local_addresses[0].source != InterfaceSource::kNet) {
      local_addresses.push_back(local_addresses[0]);
      local_addresses.back().source = InterfaceSource::kSpare;
    }
    for (TcpAddress &local : local_addresses) std::memcpy(local.challenge, challenge, sizeof challenge);
    listeners_ = std::make_shared<TcpListeners>();
    COLLC_RETURN_IF_FAILED(listeners_->open(&local_addresses));
    for (const TcpAddress &local : local_addresses)
      log(LogLevel::kInfo, "%s: waiting for other machines on %s (%s)", engine_name_,
          describe(public_address(local.place)).c_str(), local.interface);
    const auto *const words = reinterpret_cast<const unsigned char *>(local_addresses.data());
    *address = Bytes(words, words + local_addresses.size() * sizeof(TcpAddress));
    return {};
  }

  Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *connections) override {
    return TcpSetup(meeting, std::move(listeners_), tls_).run(connections);
  }

 private:
  // One rail for each list.
  Status select_listed(std::vector<TcpAddress> *local_addresses) const {
    for (const std::string &list : interfaces_.lists) {
      PublicInterface found;
      COLLC_RETURN_IF_FAILED(choose_public_address(&found.place, list.empty() ? nullptr : list.c_str(), &found.name));
      if (found.place.family == 0) return no_interface_error();
      for (const TcpAddress &address : *local_addresses)
        if (found.name == address.interface)
          return fail(ncclInvalidUsage, "COLLC_NET names the interface %s twice", address.interface);
      local_addresses->push_back(address_of(found, InterfaceSource::kNet));
    }
    return {};
  }

  Status select_found(std::vector<TcpAddress> *local_addresses) const {
    std::vector<PublicInterface> interfaces, hca_interfaces;
    COLLC_RETURN_IF_FAILED(find_public_interfaces(&interfaces));
    if (interfaces.empty()) return no_interface_error();
    COLLC_RETURN_IF_FAILED(find_running_interfaces(interfaces_.named, &hca_interfaces));
    if (hca_interfaces.empty() && !interfaces_.named.empty())
      log(LogLevel::kInfo,
          "no interface of the devices that NCCL_IB_HCA names is up and has an address: the usual ones are used");
    const bool is_selected = interfaces[0].asked && hca_interfaces.empty();
    const auto excluded = [this](const PublicInterface &interface) {
      return !interface.asked && contains(interfaces_.excluded, interface.name);
    };
    interfaces.erase(std::remove_if(interfaces.begin() + 1, interfaces.end(), excluded), interfaces.end());
    const std::vector<NicInterface> topology_nics = find_nics();
    std::vector<NicInterface> nics;
    if (!hca_interfaces.empty()) {
      // Of the others only the usual interface remains: the one on which machines meet if some have none of the named
      // interfaces.
      interfaces.resize(1);
      for (size_t i = 0; i < interfaces_.named.size(); ++i) nics.push_back({interfaces_.named[i], interfaces_.places[i], 0});
    } else if (!is_selected) {
      for (const NicInterface &interface : topology_nics)
        if (!contains(interfaces_.excluded, interface.name)) nics.push_back(interface);
    }
    COLLC_RETURN_IF_FAILED(add_nics(nics, &interfaces));
    interfaces.resize(std::min<size_t>(interfaces.size(), kMaxRails / streams_));
    for (const PublicInterface &interface : interfaces) {
      const NicInterface *const nic = find_nic(nics, interface.name), *const topology_nic =
                                                                          find_nic(topology_nics, interface.name);
      const InterfaceSource default_source = nic != nullptr ? InterfaceSource::kNic : InterfaceSource::kNobody;
      local_addresses->push_back(address_of(interface, is_selected ? InterfaceSource::kList : default_source));
      if (nic != nullptr) local_addresses->back().nic = nic->nic;
      if (topology_nic != nullptr) local_addresses->back().fabric = topology_nic->fabric;
    }
    return {};
  }

  // Returns the interfaces of the topology's NICs, in its order: one for each NIC, or several if its bus id belongs to
  // several.
  std::vector<NicInterface> find_nics() const {
    std::vector<NicInterface> nics;
    for (size_t i = 0; i < place_.cards.size(); ++i)
      for (const std::string &name : find_interfaces(place_.cards[i], kSysFolder))
        if (find_nic(nics, name) == nullptr) nics.push_back({name, static_cast<uint32_t>(i) + 1, place_.cards[i].network});
    return nics;
  }

  // Inserts these NICs after the usual interface, before the others like it.
  static Status add_nics(const std::vector<NicInterface> &nics, std::vector<PublicInterface> *interfaces) {
    std::vector<std::string> names;
    for (const NicInterface &interface : nics)
      if (interface.name != (*interfaces)[0].name) names.push_back(interface.name);
    std::vector<PublicInterface> running;
    COLLC_RETURN_IF_FAILED(find_running_interfaces(names, &running));
    const auto is_nic = [&names](const PublicInterface &interface) { return contains(names, interface.name); };
    interfaces->erase(std::remove_if(interfaces->begin() + 1, interfaces->end(), is_nic), interfaces->end());
    interfaces->insert(interfaces->begin() + 1, running.begin(), running.end());
    return {};
  }

  static Status no_interface_error() {
    return fail(ncclSystemError, "no network interface is up: other machines are out of reach");
  }

  TcpAddress address_of(const PublicInterface &interface, InterfaceSource source) const {
    TcpAddress address = {};
    std::strncpy(address.engine, engine_name_, sizeof address.engine - 1);
    gethostname(address.host, sizeof address.host - 1);
    address.place = interface.place;
    std::strncpy(address.interface, interface.name.c_str(), sizeof address.interface - 1);
    address.streams = streams_;
    address.mbits = speed_of_interface(interface.name);
    address.gpu_distance = distance_from_gpus(interface.name, place_.gpus, kSysFolder);
    address.prefix = interface.prefix;
    address.source = source;
    return address;
  }

  TcpInterfaces interfaces_;
  WirePlace place_;
  uint32_t streams_;
  bool tls_;
  const char *engine_name_;
  std::shared_ptr<TcpListeners> listeners_;
};

}  // namespace

std::unique_ptr<WireEngine> make_tcp_engine(const TcpInterfaces &interfaces, const WirePlace &place, uint32_t streams, bool tls,
                                            const char *engine_name) {
  return std::make_unique<TcpEngine>(interfaces, place, streams, tls, engine_name);
}

}  // namespace collc
