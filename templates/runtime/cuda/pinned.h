// The pinned host memory of one rank: the regions of its pairs, mapped for its GPU.
#pragma once
#include <map>
#include <memory>

#include "cuda/driver.h"
#include "cuda/pinned_plan.h"
#include "executor/backend.h"

namespace collc::cuda {

class PinnedMemory {
 public:
  // Collective among the ranks of a communicator, while it is made. `made`: null if no pair needs any.
  static Status share(const RankContext &context, const PinnedPlan &plan, std::unique_ptr<PinnedMemory> *made);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;

  // Where the region with a rank of the plan is for the GPU.
  Address region(uint32_t peer) const { return regions_.at(peer).device; }

 private:
  PinnedMemory();
  Status map(int fd, const PinnedPlan::Region &region, uint32_t peer);
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
