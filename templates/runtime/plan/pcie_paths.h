// Distances between GPUs on PCIe: on the machine, as its driver reports them, and in the graph of a plan.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collc/tables.h"

namespace collc {

constexpr uint8_t kUnknownPath = 0xff;

// Distances between the GPUs of ranks as NVML's topology levels (nvmlGpuTopologyLevel_t): 10 behind one switch, 20 behind
// several switches, 30 behind one host bridge, 40 in one NUMA node, 50 across NUMA nodes.
struct PciePaths {
  uint32_t nranks = 0;          // 0: unknown
  std::vector<uint8_t> levels;  // [rank * nranks + other], symmetric

  uint8_t between(uint32_t a, uint32_t b) const { return levels[size_t{a} * nranks + b]; }
};

// Combines the rows of all ranks: rows[rank * nranks + other] is the level that `rank` found. Returns paths with nranks 0 if
// some pair is unknown, or if its two ranks disagree.
PciePaths merge_paths(uint32_t nranks, const std::vector<uint8_t> &rows);

// Distances between the ranks of a plan: the number of links on the shortest path over neither NVLinks nor another rank;
// kUnknownPath if there is no such path.
class PlanDistances {
 public:
  // Empty if no FIFO of the allocation uses PCIe, because then these distances do not matter.
  explicit PlanDistances(const Allocation &allocation);

  bool is_empty() const { return nlinks_.empty(); }
  uint8_t between(uint32_t a, uint32_t b) const { return nlinks_[size_t{a} * nranks_ + b]; }

 private:
  uint32_t nranks_;
  std::vector<uint8_t> nlinks_;  // [rank * nranks_ + other]
};

// Checks, pair by pair, that pairs of GPUs that are farther apart in the plan are never closer on the machine.
class DistanceOrder {
 public:
  // Adds a pair with `nlinks` in the plan and `level` on the machine. Returns false if it contradicts a pair before it.
  bool add(uint8_t nlinks, uint8_t level);

 private:
  struct Range {
    uint8_t nlinks, min_level, max_level;
  };
  std::vector<Range> ranges_;  // one per number of links
};

}  // namespace collc
