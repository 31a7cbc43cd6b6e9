// The class net inside a server: FIFOs between GPUs of one server whose chunks leave by the NIC near one GPU and come back by
// the NIC near the other (docs/classes.md). Each end has a separate half in pinned host memory, as between servers
// (wire_halves.h). A kernel fills a slot of its half, the proxy of its process sends it, and the proxy of the other rank's
// process stores it in that rank's half. All halves are in the segment that the ranks share. So proxies send each other only
// chunks and counts of read chunks, and after a lost connection they find the missing chunks in memory.
#pragma once
#include <string>
#include <vector>

#include "cuda/elsewhere.h"
#include "cuda/end_place.h"
#include "cuda/driver.h"
#include "executor/backend.h"
#include "transport/fifo.h"

namespace collc::cuda {

// Where the halves of each rank lie in the target's part of the segment, by NCCL rank.
class NetLayout {
 public:
  // The halves start at offset `begin`.
  NetLayout(const Tables &tables, const Placement &placement, uint64_t begin);
  bool empty() const { return halves_.empty(); }  // no program of the tables has that class, or ranks are on several machines
  const FifoLayout &halves(uint32_t rank) const { return halves_[rank]; }
  uint64_t begin(uint32_t rank) const { return begins_[rank]; }
  uint64_t end(uint32_t rank) const { return begins_[rank + 1]; }
  uint64_t end() const { return begins_.back(); }

 private:
  std::vector<FifoLayout> halves_;
  std::vector<uint64_t> begins_;
};

NetLayout net_layout(const Tables &tables, const Placement &placement);

// The addresses of a rank's halves, for its device; `at`: of the first.
class NetHalves {
 public:
  NetHalves(const NetLayout &layout, uint32_t rank, Address at) : layout_(layout), rank_(rank), at_(at) {}
  HalfPlaces fifo(const EndPlace &end, uint32_t protocol) const;
  HalfPlaces queue(uint32_t, uint32_t) const { return {}; }

 private:
  const NetLayout &layout_;
  uint32_t rank_;
  Address at_;
};

// Joins the ranks' network cards; collective among them, while the communicator is made. `pinned`: whether this rank's halves
// are. `refused`: as of join_ranks().
Status join_cards(const RankContext &context, const NetLayout &layout, const Status &pinned, std::string *refused);

}  // namespace collc::cuda
