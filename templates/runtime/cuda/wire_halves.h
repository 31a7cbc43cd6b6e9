// The halves of FIFOs and queues of transfers between ranks of this machine and ranks of others. They are in the segment that
// the ranks of a machine share, with the layout of the host target, pinned for the GPUs. A kernel fills a slot, stores its byte
// count next to it and publishes the tail. The proxy (wire/proxy.h) polls that memory, so replays of a captured graph need no
// call, and stores chunks, tails and heads of other machines there. FIFOs of programs over LL have a second half each, without
// a tail: wire/lined_slots.h.
#pragma once
#include "cuda/device_plan.h"
#include "cuda/driver.h"
#include "executor/backend.h"
#include "transport/fifo.h"
#include "transport/transfers.h"

namespace collc::cuda {

// Where they lie in the target's part of the segment, from offset `begin` on.
struct HalvesLayout {
  HalvesLayout(const Tables &tables, const Placement &placement);
  uint64_t begin;
  FifoLayout fifos;
  TransferLayout transfers;
  LinedFifos lines;
  FifoLayout lined;
  uint64_t end() const { return lined.end(); }
};

// Bytes of the target's part of the segment.
uint64_t segment_bytes(const Tables &tables, const Placement &placement);

// Nothing if all ranks are on one machine. Fails where slots of transfers cannot hold what kernels write.
Status find_elsewhere(const RankContext &context, Elsewhere *elsewhere);

// Between machines everything runs over Simple, or over LL where programs of the tables do: what is asked for besides is
// refused, or undone where NCCL_PROTO asks.
Status follow_proxies(const RankContext &context, const Elsewhere &elsewhere, Overrides *overrides);

// The addresses of halves, for one device.
class Halves {
 public:
  // `at`: of HalvesLayout::begin.
  Halves(const RankContext &context, Address at)
      : placement_(context.placement), layout_(*context.tables, context.placement), at_(at) {}
  HalfPlaces fifo(const EndPlace &end, uint32_t protocol) const;
  // Returns the half of the queue of sends from one rank of the plan to another.
  HalfPlaces queue(uint32_t writer, uint32_t reader) const;

 private:
  uint64_t address(uint64_t offset) const { return at_ + (offset - layout_.begin); }
  const Placement &placement_;
  HalvesLayout layout_;
  Address at_;
};

// Joins the machines of a communicator; collective among its ranks, while it is made.
Status join_halves(const RankContext &context);

}  // namespace collc::cuda
