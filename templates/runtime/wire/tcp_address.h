// The addresses where machines listen for each other over plain sockets, and the choice of the interfaces that join them.
#pragma once
#include <net/if.h>

#include <vector>

#include "bootstrap/unique_id.h"

namespace collc {

// Why an interface is in a machine's list.
enum class InterfaceSource : uint32_t {
  kNobody,  // it is up and leads out
  kNic,  // it belongs to a NIC of the library's topology, or of NCCL_IB_HCA
  kList,  // a list in NCCL's form selects it
  kNet,  // COLLC_NET selects it; one interface for each rail, in order
  kSpare,  // it is the usual interface once more, for machines that no rail joins
};

// Where a machine listens, and random bytes that callers must know. A machine sends one for each of its interfaces, the spare
// last.
struct TcpAddress {
  Id place;  // only family, address, scope and port
  unsigned char challenge[32];
  char host[64];
  char interface[IFNAMSIZ];
  char engine[8];
  uint32_t streams;  // connections over each interface
  uint32_t mbits;  // speed of the interface in Mbit/s; 0: unknown
  uint32_t prefix;  // bits of the address that identify its network
  uint32_t gpu_distance;  // distance from the nearest GPU of the machine's ranks (nics.h)
  uint32_t fabric;  // interfaces with different numbers are not joined, according to the library's topology; 0: unknown
  uint32_t nic;  // number of its NIC on the machine, counted from 1; equal for interfaces of one NIC; 0: not a known NIC
  InterfaceSource source;
};

// Chooses the interfaces that become rails. Afterwards all machines have equally many, and the interfaces at one place in the
// lists form a rail. All machines come to the same result.
//
// - If COLLC_NET names the interfaces on all machines: the first ones form a rail, the second ones, and so on.
// - If all machines select theirs by COLLC_NET or a list: interfaces of one network, and then the rest in order, unless the
//   topology says that they are not joined.
// - Otherwise, if every machine has NICs in one network with the others: only these, one rail for each network.
// - Otherwise, if every machine has NICs, but not in common networks, the network is routed: NICs of one number, or, if there
//   are none, the first ones, the second ones, and so on.
// - Without NICs: the usual interfaces, and further interfaces of one network.
//
// Unless COLLC_NET names the interfaces, rails near to GPUs come first. Returns true if the last place is not a rail but the
// spare. There is a spare unless COLLC_NET names all interfaces, or the only rail is the usual interface of each machine;
// then the spare takes the place of this rail.
bool pair_rails(std::vector<std::vector<TcpAddress>> *machines);

}  // namespace collc
