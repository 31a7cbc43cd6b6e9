// Pinned host memory of one rank, mapped for its GPU: the regions of its pairs, or the slots of all ranks (staged_copies.h).
//
// Owner: ConnectorMemory (regions) or RankCopies (slots); DeferredFrees after the end of the rank. Threads: the one that
// creates the communicator. share() and share_slots() are collective: they block until the other ranks call them. The
// destructor waits for kernels of the GPU.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "base/descriptor.h"
#include "cuda/driver.h"
#include "cuda/pinned_plan.h"
#include "executor/backend.h"

namespace collc::cuda {

class PinnedMemory {
 public:
  // Collective among the ranks of a communicator, while it is made. The region of a pair is next to the GPU of its higher rank.
  // `made`: null if no pair needs any.
  // `refused`: which rank cannot have its own and why, the same words on all ranks, where all pairs can do without; then nobody
  // may use `made`, and the caller disposes of it. Where a pair cannot, the creation fails.
  static Status share(const RankContext &context, DeviceNumber device, const PinnedPlan &plan,
                      std::unique_ptr<PinnedMemory> *made, std::string *refused);
  // The same with `bytes` for each rank, next to its GPU. `problem`: why this rank cannot have or map them.
  static Status share_slots(const RankContext &context, DeviceNumber device, size_t bytes, std::unique_ptr<PinnedMemory> *made,
                            Status *problem);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;

  // Returns the address of the region with a rank of the plan, for the GPU.
  Address region(uint32_t peer) const { return regions_.at(peer).device; }
  // Returns the address of the memory of all ranks, ordered by NCCL rank.
  Address slots() const { return regions_.at(0).device; }

 private:
  PinnedMemory();
  Status map(const Descriptor &file, size_t from, size_t bytes, uint32_t key);
  Status pin(uint32_t key, const char *need);
  struct Mapping {
    void *at = nullptr;
    size_t bytes = 0;
    bool pinned = false;
    Address device = 0;
  };
  int process_;  // a forked child has no mapping to undo
  std::map<uint32_t, Mapping> regions_;  // by rank of the plan; one of all slots
};

}  // namespace collc::cuda
