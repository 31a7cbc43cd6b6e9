// The links that chunks cross, as the tables name them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/call.h"

namespace collc {

const char *name_of(LinkClass link);

// The GPU that an NCCL rank stands for, as the topology names it; empty where that is not known.
std::string gpu_name(const Placement &placement, uint32_t rank);

// The links between two NCCL ranks that the plan joins.
struct RankPath {
  uint32_t from, to;
  LinkClass link = LinkClass::kNone;  // the slowest
  double gbps = 0;                    // of the slowest, on the fastest of several ways; 0: the tables do not say it
  std::string path{};                 // "gpu0 -nvlink- gpu1"; empty: the tables do not say it
  std::vector<uint32_t> links{};      // numbers of the graph's, of all ways
};

// Every ordered pair that a FIFO of the plan joins, in the order of their ranks.
std::vector<RankPath> find_rank_paths(const Placement &placement);

// COLLC_DEBUG=INFO: a line per class of links with the ranks that NCCL rank `rank` writes to over it. TRACE: a line per FIFO
// and reader with the way between them.
void log_routes(const Placement &placement, uint32_t rank);

}  // namespace collc
