// Tracks which user buffers the kernels of other ranks may read in place (host side of collc/cuda/direct.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/device_plan.h"
#include "cuda/driver.h"
#include "cuda/loans.h"
#include "executor/backend.h"

namespace collc::cuda {

// Returns true if chunks may travel by address over a connector of `rank`: both GPUs can read the writer's buffers, and a word
// for each slot has room next to the tail. `reaches(peer)` is the same on both sides.
template <class Reaches>
bool goes_by_address(const DevicePlan &plan, uint32_t rank, const EndPlace &place, const Reaches &reaches) {
  const bool has_tail = place.memory[kSimple].used && !place.leaves && !place.team.is_in;
  return has_tail && place.nslots <= kMostByAddress && !place.staged && !plan.pinned.joins(rank, place.peer) &&
         reaches(place.peer);
}

// Marks the connectors of `rank` (of DevicePlan::make_ends) that may carry addresses. `way(peer)` returns FifoEnd::by_address;
// 0 if the two ranks do not read each other's buffers.
template <class Way>
void mark_by_address(const DevicePlan &plan, uint32_t rank, Way way, FifoEnd *made) {
  const std::vector<EndPlace> &places = plan.ends[rank];
  const auto reaches = [&way](uint32_t peer) { return way(peer) != 0; };
  for (size_t i = 0; i < places.size(); ++i)
    if (goes_by_address(plan, rank, places[i], reaches)) made[kSimple * places.size() + i].by_address = way(places[i].peer);
}

// Buffers of ncclMemAlloc and ncclCommRegister, which every GPU with access to their owner's memory reads: by their address in
// this process, and in others where these have mapped them (loans.h).
void *allocate_buffer(size_t bytes);
Status release_buffer(void *memory);
// COLLC_DIRECT: 0 lends nothing. COLLC_DIRECT_PROCESSES: 1 also lends to other processes, and reads what they lend. Ranks may
// differ.
struct Lending {
  bool lends = true;
  bool abroad = false;
};
Status read_lending(Lending *wish);

// The buffers of a call that a rank can export.
struct LentCall {
  uint64_t which = 0;  // kLentInput, kLentOutput
  LentBuffer input, output;
};
LentCall lent_by(const Call &call, uint32_t nranks, Context context, const void *holder);
// The buffer with these bytes; number 0 if there is none that other processes can map.
LentBuffer find_buffer(const void *memory, uint64_t bytes, Context context, const void *holder);
// ncclCommRegister by a rank (`holder`) whose GPU has this context: its calls export the memory like memory of ncclMemAlloc,
// until it is withdrawn as often. `abroad`: also to other processes. Returns false if the memory is not of cuMemAlloc on this
// GPU.
bool register_buffer(const void *memory, uint64_t bytes, Context context, bool abroad, const void *holder);
// The number of the buffer, if this rank lends it no longer to other processes; else 0.
uint64_t withdraw_buffer(const void *memory, const void *holder);
// The rank goes.
void withdraw_all(const void *holder);

}  // namespace collc::cuda
