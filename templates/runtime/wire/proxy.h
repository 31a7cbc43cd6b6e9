// The proxy thread: one per process, which moves chunks to and from other machines for all communicators of the process.
//
// On each machine, the process of a communicator's first local rank has the connections to all other machines. Its proxy
// thread polls the memory of the FIFOs and its sockets, so no rank ever calls it, and graph replays need no host call. While
// something moves, the thread polls without a pause. Then it yields its core for 50 us, and then sleeps between polls, for an
// eighth of the idle time, at least 20 us and at most 1 ms. Input from the network wakes it at once.
//
// Memory order: it reads and writes FIFOs like a rank, see transport/fifo.h; FIFOs of GPUs are described in lined_slots.h and
// cuda/wire_halves.h.
#pragma once
#include <memory>
#include <vector>

#include "bootstrap/exchange.h"
#include "transport/fifo.h"
#include "transport/transfers.h"

namespace collc {

// The data that joins a communicator's rank with other machines.
struct JoinRequest {
  std::shared_ptr<Segment> segment;
  const Placement &placement;
  uint32_t rank;
  const std::vector<uint64_t> &processes;
  const std::string &secret;
  double seconds;
  const Exchange &exchange;
  std::function<bool()> gone;  // as RankContext::gone
  Fifos fifos;  // ends of no rank (Fifos::kNobody)
  TransferLayout transfers;
  Fifos lined = {};  // ends of no rank: halves of FIFOs with the protocol LL (lined_slots.h)
  const std::vector<Fifos> *ranks = nullptr;  // only for join_ranks(): as RemoteContext::ranks
};

// Joins the machines of a communicator; called by the creating thread of each rank, and blocks. The first rank of each
// machine connects and starts the proxy thread; the others only take part in the exchange. The proxy thread sees in the
// segment when ranks end. It serves the communicator until all local ranks have gone and everything that they sent has
// arrived. A process that ends by exit() waits for this, up to 10 s, unless some of its ranks have not left.
Status join_machines(const JoinRequest &request);

// Joins ranks of one machine that send to each other over NICs, as one path class among others; otherwise as join_machines().
// For the engine each rank is a machine with the NIC nearest to its GPU, and `request.placement` describes it as one; each
// rank has a proxy thread in its process. `ready`: whether this rank has everything that it needs. `refused` receives the
// reason why the ranks cannot be joined, equal on all ranks; empty: they are joined from now on.
Status join_ranks(const Status &ready, const JoinRequest &request, std::string *refused);

}  // namespace collc
