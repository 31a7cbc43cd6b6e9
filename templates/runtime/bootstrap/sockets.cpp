#include "bootstrap/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/environment.h"
#include "bootstrap/interface_filter.h"

namespace collc {
namespace {

// Ranks interfaces when no variable names one: bridges of containers and virtual machines lead nowhere else.
int score_of(const ifaddrs &interface) {
  if ((interface.ifa_flags & IFF_LOOPBACK) != 0) return 0;
  for (const char *inner : {"docker", "veth", "virbr"})
    if (std::strncmp(interface.ifa_name, inner, std::strlen(inner)) == 0) return 1;
  return 4;
}

void take_address(const sockaddr *from, Id *id) {
  id->family = from->sa_family;
  if (from->sa_family == AF_INET) {
    std::memcpy(id->address, &reinterpret_cast<const sockaddr_in *>(from)->sin_addr, 4);
    return;
  }
  const auto *v6 = reinterpret_cast<const sockaddr_in6 *>(from);
  std::memcpy(id->address, &v6->sin6_addr, 16);
  id->scope = v6->sin6_scope_id;
}

}  // namespace

Address local_address(const std::string &name) {
  Address address = {};
  auto *local = reinterpret_cast<sockaddr_un *>(&address.storage);
  local->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof local->sun_path - 1);
  std::memcpy(local->sun_path + 1, name.data(), size);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

std::string listener_name(const Id &id) { return "collc:" + hex_of(id.name, sizeof id.name); }

Address public_address(const Id &id) {
  Address address = {};
  if (id.family == AF_INET6) {
    auto *v6 = reinterpret_cast<sockaddr_in6 *>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = id.port;
    v6->sin6_scope_id = id.scope;
    std::memcpy(&v6->sin6_addr, id.address, 16);
    address.size = sizeof *v6;
    return address;
  }
  auto *v4 = reinterpret_cast<sockaddr_in *>(&address.storage);
  v4->sin_family = AF_INET;
  v4->sin_port = id.port;
  std::memcpy(&v4->sin_addr, id.address, 4);
  address.size = sizeof *v4;
  return address;
}

std::string describe(const Address &address) {
  char text[INET6_ADDRSTRLEN] = "?";
  const int family = address.storage.ss_family;
  if (family == AF_UNIX) return "its local socket";
  const auto *v4 = reinterpret_cast<const sockaddr_in *>(&address.storage);
  const auto *v6 = reinterpret_cast<const sockaddr_in6 *>(&address.storage);
  inet_ntop(family, family == AF_INET ? static_cast<const void *>(&v4->sin_addr) : &v6->sin6_addr, text, sizeof text);
  return format("%s port %u", text, ntohs(family == AF_INET ? v4->sin_port : v6->sin6_port));
}

Status choose_public_address(Id *id, const char *interface, std::string *name) {
  const char *wanted = interface != nullptr ? interface : read_text("COLLC_SOCKET_IFNAME");
  if (wanted == nullptr) wanted = read_text("NCCL_SOCKET_IFNAME");
  const InterfaceFilter filter(wanted);
  ifaddrs *all = nullptr;
  if (getifaddrs(&all) != 0) return fail_errno("cannot list the network interfaces", errno);
  int best = -1;
  for (const ifaddrs *at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (!filter.takes(at->ifa_name)) continue;
    const int score = 2 * (filter.chooses() ? 0 : score_of(*at)) + (family == AF_INET ? 1 : 0);
    if (score <= best) continue;
    best = score;
    take_address(at->ifa_addr, id);
    if (name != nullptr) *name = at->ifa_name;
  }
  freeifaddrs(all);
  if (best < 0 && wanted != nullptr)
    return fail(ncclSystemError, "no network interface %s %.32s is up: see %s", filter.chooses() ? "called" : "that passes",
                wanted, interface != nullptr ? "COLLC_NET" : "COLLC_SOCKET_IFNAME");
  return {};
}

Status listen_at(const Address &address, Descriptor *listening) {
  Descriptor made = make_socket(address.storage.ss_family);
  if (!made) return fail_errno("cannot open a socket", errno);
  if (bind(made.get(), address.get(), address.size) != 0 || listen(made.get(), 4096) != 0)
    return fail_errno("cannot listen on " + describe(address), errno);
  *listening = std::move(made);
  return {};
}

Descriptor make_socket(int family) {
  Descriptor made = Descriptor::open([family] { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (made && family != AF_UNIX) {
    const int one = 1;  // inherited by what a listening socket accepts
    setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(made.get(), SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  }
  return made;
}

bool peer_user(int socket, uid_t *user) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || size != sizeof peer) return false;
  *user = peer.uid;
  return true;
}

}  // namespace collc
