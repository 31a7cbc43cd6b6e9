// The thread of a process that moves chunks between machines, for all its communicators.
//
// On each machine, the process of a communicator's first rank there has the connections with all other machines. Its courier
// looks at the memory of the FIFOs and at its sockets, so no rank ever calls it. While something moves it does not rest; then
// it yields its core for 50 us, and then sleeps between looks, for longer the longer nothing has moved, but never
// for more than a millisecond. What comes in from the network wakes it at once.
#pragma once
#include <memory>
#include <vector>

#include "bootstrap/exchange.h"
#include "transport/fifo.h"
#include "transport/transfers.h"

namespace collc {

// What a communicator needs to be joined with other machines.
struct JoinRequest {
  std::shared_ptr<Segment> segment;
  const Placement &placement;
  uint32_t rank;
  const std::vector<uint64_t> &processes;
  const std::string &secret;
  double seconds;
  const Exchange &exchange;
  std::function<bool()> gone;  // as of a RankContext
  Fifos fifos;  // of nobody
  TransferLayout transfers;
  Fifos lined = {};  // of nobody: halves whose chunks are lines with flags (lined_slots.h)
  const std::vector<Fifos> *ranks = nullptr;  // of join_ranks() alone: as in LaneContext
};

// Joins the machines of a communicator; collective among its ranks. The first rank of each machine starts the courier; the
// others only take part in the exchange. Ends of ranks show in the segment; the courier goes on until all ranks here have
// gone and what they sent has arrived. A process that ends by exit waits for that, up to ten seconds, unless it has ranks that
// have not left.
Status join_machines(const JoinRequest &request);

// The same for ranks of one machine that send to each other over network cards, as one class of links among others. To the
// engine each of them is a machine, with the card nearest to its GPU, and so it is in `request.placement`; each has a courier in
// its process. `ready`: whether this rank has what it needs. `refused`: why that cannot be, the same words on all ranks;
// empty: it can, and from now on it is.
Status join_ranks(const Status &ready, const JoinRequest &request, std::string *refused);

}  // namespace collc
