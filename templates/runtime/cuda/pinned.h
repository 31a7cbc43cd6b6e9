// The pinned host memory of one rank: the regions of its pairs, mapped for its GPU.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "cuda/driver.h"
#include "cuda/pinned_plan.h"
#include "executor/backend.h"

namespace collc::cuda {

class PinnedMemory {
 public:
  // Collective among the ranks of a communicator, while it is made. `made`: null if no pair needs any.
  // `refused`: which rank cannot have its own and why, the same words on all ranks, where all pairs can do without; then nobody
  // may use `made`, and the caller disposes of it. Where a pair cannot, the creation fails.
  static Status share(const RankContext &context, const PinnedPlan &plan, std::unique_ptr<PinnedMemory> *made,
                      std::string *refused);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;

  // Where the region with a rank of the plan is for the GPU.
  Address region(uint32_t peer) const { return regions_.at(peer).device; }

 private:
  PinnedMemory();
  Status map(int fd, const PinnedPlan::Region &region, uint32_t peer, const char *need);
  struct Mapping {
    void *at = nullptr;
    size_t bytes = 0;
    bool pinned = false;
    Address device = 0;
  };
  int process_;  // a forked child has no mapping to undo
  std::map<uint32_t, Mapping> regions_;  // by rank of the plan
};

}  // namespace collc::cuda
