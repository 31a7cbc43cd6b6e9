// The facts about a communicator that its plan for devices depends on.
#pragma once
#include <cstdint>
#include <vector>

#include "cuda/elsewhere.h"
#include "cuda/pinned_plan.h"
#include "plan/overrides.h"

namespace collc::cuda {

// The same on all ranks.
struct PlanSettings {
  std::vector<uint32_t> nccl_rank;  // by rank of the plan; empty: the same numbers
  Overrides overrides;
  bool has_ll128 = true;  // the devices have LL128's kernels, and the links carry its lines
  PinnedPairs pinned;     // pairs of ranks that need pinned memory
  Elsewhere elsewhere;    // ranks on other servers
};

}  // namespace collc::cuda
