#include "bootstrap/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/environment.h"
#include "bootstrap/interface_filter.h"

namespace collc {
namespace {

// Rates an interface for the case that no variable names one. Bridges of containers and virtual machines reach no other
// server.
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

uint32_t bits_of(const sockaddr *mask) {
  if (mask == nullptr) return 0;
  const bool v4 = mask->sa_family == AF_INET;
  const void *const data = v4 ? static_cast<const void *>(&reinterpret_cast<const sockaddr_in *>(mask)->sin_addr)
                              : &reinterpret_cast<const sockaddr_in6 *>(mask)->sin6_addr;
  uint32_t bits = 0;
  for (size_t i = 0; i < (v4 ? 4 : 16); ++i)
    bits += static_cast<uint32_t>(__builtin_popcount(static_cast<const unsigned char *>(data)[i]));
  return bits;
}

// Returns the driver of a NIC; "" for a virtual interface.
std::string driver_of(const std::string &name) {
  char target[256];
  const ssize_t size = readlink(("/sys/class/net/" + name + "/device/driver").c_str(), target, sizeof target);
  if (size <= 0) return "";
  const std::string path(target, static_cast<size_t>(size));
  return path.substr(path.rfind('/') + 1);
}

// Returns the list of interfaces from the environment; null if there is none.
const char *interface_list() {
  const char *const own = read_text("COLLC_SOCKET_IFNAME");
  return own != nullptr ? own : read_text("NCCL_SOCKET_IFNAME");
}

// Returns whether an address is link-local (IPv6). Every interface has such an address, even without a connection, and by it
// all interfaces would seem to be in one network.
bool is_link_local(const sockaddr *address) {
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6 *>(address)->sin6_addr);
}

// Returns one address for each interface that is up and passes the filter, in the system's order. All but the interface
// called `first` must also be running and have an address that is not link-local.
std::vector<PublicInterface> list_interfaces(const ifaddrs *at, const InterfaceFilter &filter, const std::string &first) {
  std::vector<PublicInterface> found;
  for (; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || !filter.takes(at->ifa_name)) continue;
    if ((at->ifa_flags & IFF_RUNNING) == 0 && first != at->ifa_name) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (first != at->ifa_name && is_link_local(at->ifa_addr)) continue;
    auto known = std::find_if(found.begin(), found.end(), [at](const auto &one) { return one.name == at->ifa_name; });
    if (known == found.end())
      known = found.insert(known, PublicInterface{at->ifa_name, {}, 0, filter.chooses()});
    else if (family != AF_INET || known->place.family == AF_INET)
      continue;
    take_address(at->ifa_addr, &known->place);
    known->prefix = bits_of(at->ifa_netmask);
  }
  return found;
}

}  // namespace

bool is_one_network(const Id &one, uint32_t prefix, const Id &other, uint32_t of_other) {
  if (one.family != other.family || prefix != of_other) return false;
  for (uint32_t bit = 0; bit < prefix; ++bit)
    if (((one.address[bit / 8] ^ other.address[bit / 8]) & (0x80 >> bit % 8)) != 0) return false;
  return true;
}

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
  const char *const wanted = interface != nullptr ? interface : interface_list();
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

Status find_public_interfaces(std::vector<PublicInterface> *found) {
  found->clear();
  Id place = {};
  std::string first;
  COLLC_RETURN_IF_FAILED(choose_public_address(&place, nullptr, &first));
  if (place.family == 0) return {};
  const InterfaceFilter filter(interface_list());
  ifaddrs *all = nullptr;
  if (getifaddrs(&all) != 0) return fail_errno("cannot list the network interfaces", errno);
  std::vector<PublicInterface> others = list_interfaces(all, filter, first);
  freeifaddrs(all);
  const auto chosen = std::find_if(others.begin(), others.end(), [&first](const auto &one) { return one.name == first; });
  if (chosen == others.end()) return fail(ncclSystemError, "the network interface %s does not exist any more", first.c_str());
  found->push_back(*chosen);
  others.erase(chosen);
  const std::string driver = driver_of(first);
  const uint32_t speed = speed_of_interface(first);
  for (const PublicInterface &one : others) {
    const bool new_network = std::none_of(found->begin(), found->end(), [&one](const PublicInterface &before) {
      return is_one_network(one.place, one.prefix, before.place, before.prefix);
    });
    const bool alike = !driver.empty() && driver_of(one.name) == driver && speed_of_interface(one.name) == speed;
    if (filter.chooses() || (alike && new_network)) found->push_back(one);
  }
  return {};
}

Status find_running_interfaces(const std::vector<std::string> &names, std::vector<PublicInterface> *found) {
  found->clear();
  ifaddrs *all = nullptr;
  if (names.empty()) return {};
  if (getifaddrs(&all) != 0) return fail_errno("cannot list the network interfaces", errno);
  for (const std::string &name : names)
    for (PublicInterface &one : list_interfaces(all, InterfaceFilter(("=" + name).c_str()), ""))
      found->push_back(std::move(one));
  freeifaddrs(all);
  return {};
}

uint32_t speed_of_interface(const std::string &name) {
  FILE *const file = std::fopen(("/sys/class/net/" + name + "/speed").c_str(), "re");
  if (file == nullptr) return 0;
  long speed = 0;
  const bool known = std::fscanf(file, "%ld", &speed) == 1 && speed > 0;
  std::fclose(file);
  return known ? static_cast<uint32_t>(std::min(speed, 100000000L)) : 0;
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
    const int one = 1;  // accepted sockets inherit these options from a listening socket
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
