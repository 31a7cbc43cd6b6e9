// Addresses and sockets of the bootstrap. No function waits for another process.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "bootstrap/unique_id.h"

namespace collc {

struct Address {
  sockaddr_storage storage;
  socklen_t size;
  const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&storage); }
};

// Returns an address in the abstract namespace: it has no entry in the file system, and only processes of this network
// namespace can connect to it.
Address local_address(const std::string &name);
// Returns the name of the local socket of an id's listener.
std::string listener_name(const Id &id);
// Returns the id's address for other servers.
Address public_address(const Id &id);
std::string describe(const Address &address);

// Sets the family and the address of `id` to those that other servers can reach; IPv4 is preferred to IPv6. Takes an
// interface that COLLC_SOCKET_IFNAME or else NCCL_SOCKET_IFNAME selects. If neither selects one, takes the first interface
// that is up and not excluded there: first choice neither loopback nor a container bridge, then a container bridge, then
// loopback. Fails if a variable is set and no interface passes it; leaves `id` unchanged if no variable is set and no
// interface is up. `interface`: a list that replaces the variables. `name` receives the name of the interface.
Status choose_public_address(Id *id, const char *interface = nullptr, std::string *name = nullptr);

// An interface and its address for other servers (IPv4 if it has one).
struct PublicInterface {
  std::string name;
  Id place = {};
  uint32_t prefix = 0;  // bits of the address that identify its network
  bool asked = false;  // a variable names it
};
// Returns the interface of choose_public_address(), then others in the system's order, all of them running. If a variable
// selects interfaces, these are the others that it selects. Otherwise they are interfaces with the driver and the speed of
// the first one, in networks that no interface before them is in. Empty if no interface is up.
Status find_public_interfaces(std::vector<PublicInterface> *found);
// Returns the interfaces of `names` that are running and have an address, in the order of `names`, as if a variable named
// them.
Status find_running_interfaces(const std::vector<std::string> &names, std::vector<PublicInterface> *found);
bool is_one_network(const Id &one, uint32_t prefix, const Id &other, uint32_t of_other);
// Returns the speed in Mbit/s; 0 if the system does not know it.
uint32_t speed_of_interface(const std::string &name);

// Listens with the longest backlog that the kernel grants (at most 4096).
Status listen_at(const Address &address, Descriptor *listening);

// Returns a non-blocking stream socket; an empty owner, with errno set, on failure.
Descriptor make_socket(int family);

// Sets the user of the process at the other end of a local socket. Returns false if the system does not report it.
bool peer_user(int socket, uid_t *user);

}  // namespace collc
