// Where machines listen for each other over plain sockets, and which of their interfaces join them.
#pragma once
#include <net/if.h>

#include <vector>

#include "bootstrap/unique_id.h"

namespace collc {

// Who wants an interface.
enum class TcpWish : uint32_t {
  kNobody,  // it is there, and leads out
  kCard,  // it is of a card of the library's topology, or of NCCL_IB_HCA
  kList,  // a list of interfaces, as NCCL has them
  kNet,  // COLLC_NET, which names one for each rail in order
  kSpare,  // it is the usual one once more, for machines that no rail joins
};

// Where a machine listens, and a random word that callers must know. A machine tells one for each of its interfaces, and the spare last.
struct TcpAddress {
  Id place;  // family, address, scope and port alone
  unsigned char challenge[32];
  char host[64];
  char interface[IFNAMSIZ];
  char engine[8];
  uint32_t streams;  // over each interface
  uint32_t mbits;  // per second, of the interface; 0: not known
  uint32_t prefix;  // bits of the address that its network has
  uint32_t far;  // from the nearest of its ranks' GPUs
  uint32_t fabric;  // those of two numbers are not joined, by the library's topology; 0: not known
  uint32_t card;  // its number among the machine's cards, from 1; interfaces of one card have one; 0: none of them
  TcpWish wish;
};

// Settles which interfaces of the machines are a rail each: afterwards all have equally many, and the ones at one place are joined. Where
// COLLC_NET names them, the first ones here and there and so on. Else those of one network; and where all machines were asked for
// theirs, then the first ones of the rest, as far as the topology does not say that they are not joined. Where some were not, and every
// machine has cards in one network with others, these alone, one for each network; where every machine has cards, but in networks
// that it shares with none or some alone, the network is routed, and cards of one number are joined, or where there are none of those
// the first ones, the second ones and so on; without cards, that on which all would meet, and others of one network. Where COLLC_NET
// names none, those near GPUs come first. All machines come to the same.
// True: the last place is not a rail but the spare, which is there unless COLLC_NET names all, or the one rail is the usual interface of
// each machine: then the spare is that rail.
bool pair_rails(std::vector<std::vector<TcpAddress>> *machines);

}  // namespace collc
