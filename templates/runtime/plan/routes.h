// Describes the links between ranks for people: the log, COLLC_CHECK and error texts. Never called on the path of a call.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/placement.h"

namespace collc {

// Returns "nvlink", "pcie" and the like; "unknown links" for LinkClass::kNone.
const char *name_of(LinkClass link);

// Returns the topology's name of the GPU that an NCCL rank uses, or of an interchangeable one; empty if the GPUs are unknown.
std::string gpu_name(const Placement &placement, uint32_t rank);

// The links from one NCCL rank to another. Each FIFO between the two has a route, and routes may differ; `link`, `gbps` and
// `path` describe the route whose slowest link is the fastest.
struct RankPath {
  uint32_t from, to;
  LinkClass link = LinkClass::kNone;  // the slowest class of its links, in the order of LinkClass
  double gbps = 0;                    // GB/s of the slowest link; 0 if the tables have no links
  std::string path{};                 // such as "gpu0 -nvlink- gpu1"; empty if the tables have no links
  std::vector<uint32_t> links{};      // the links of all routes, as numbers in the allocation's graph
};

// Returns one entry per ordered pair of ranks that a FIFO of the plan connects, sorted by `from`, then `to`.
std::vector<RankPath> find_rank_paths(const Placement &placement);

// Logs the FIFOs of an NCCL rank. COLLC_DEBUG=INFO: one line per class of links, with the ranks that the rank sends to over it.
// COLLC_DEBUG=TRACE: also one line per FIFO and reader, with the path.
void log_routes(const Placement &placement, uint32_t rank);

}  // namespace collc
