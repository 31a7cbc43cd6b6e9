// Addresses and sockets of the bootstrap.
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

// In the abstract namespace: nothing in the file system, and only processes of this network namespace reach it.
Address local_address(const std::string &name);
// The name of the local socket of an id's listener.
std::string listener_name(const Id &id);
// The id's address for other servers.
Address public_address(const Id &id);
std::string describe(const Address &address);

// The address that other servers can reach: of an interface that COLLC_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, else of
// the first one that is up, not excluded there, and neither loopback nor a container bridge, else the loopback's. Only
// `family` 0 is left where no variable asked for one and there is none.
// `interface`: the list to use in their place. `name`: of the interface.
Status choose_public_address(Id *id, const char *interface = nullptr, std::string *name = nullptr);

// An interface with the address that other servers may reach, IPv4 before IPv6.
struct PublicInterface {
  std::string name;
  Id place = {};
  uint32_t prefix = 0;  // bits of the address that its network has
  bool asked = false;  // a variable names it
};
// What choose_public_address() finds, and behind it, in the system's order: where a variable names several interfaces, the others that
// run; else those like the first: of its driver and speed, and of other networks than those before. Empty if there is none.
Status find_public_interfaces(std::vector<PublicInterface> *found);
// Those of `names` that run and have an address, in their order; as if a variable named them.
Status find_running_interfaces(const std::vector<std::string> &names, std::vector<PublicInterface> *found);
bool is_one_network(const Id &one, uint32_t prefix, const Id &other, uint32_t of_other);
// In Mbit/s; 0 where the system does not know it.
uint32_t speed_of_interface(const std::string &name);

// Listens with the longest queue that the kernel grants.
Status listen_at(const Address &address, Descriptor *listening);

// Not blocking; invalid on failure, with errno.
Descriptor make_socket(int family);

// The user at the other end of a local socket; false if it cannot be told.
bool peer_user(int socket, uid_t *user);

}  // namespace collc
