// How far apart GPUs are on PCIe: on the machine, as its driver tells it, and in the graph of a plan.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include "collc/tables.h"
#include "plan/gpu_place.h"

namespace collc {

constexpr uint8_t kUnknownPath = 0xff;

// Between the GPUs of ranks, in NVML's steps: 10 behind one switch, 20 several switches, 30 one host bridge, 40 one node of a
// machine's memory, 50 beyond it.
struct PciePaths {
  uint32_t nranks = 0;  // 0: nothing is known
  std::vector<uint8_t> steps;  // [rank * nranks + other], the same both ways

  uint8_t between(uint32_t a, uint32_t b) const { return steps[size_t{a} * nranks + b]; }
};

// `rows`: what each rank has found out about all. Nothing is known where one of them lacks a pair.
PciePaths merge_paths(uint32_t nranks, const std::vector<uint8_t> &rows);

// Links on the way between two ranks of a plan that passes neither NVLinks nor another GPU; kUnknownPath: there is none.
class PlanDistances {
 public:
  // Empty where no FIFO of the allocation goes over PCIe: then it matters to nobody.
  explicit PlanDistances(const Allocation &allocation);

  bool any() const { return !links_.empty(); }
  uint8_t between(uint32_t a, uint32_t b) const { return links_[size_t{a} * nranks_ + b]; }

 private:
  uint32_t nranks_;
  std::vector<uint8_t> links_;
};

// Whether pairs that are farther apart in the plan are nowhere nearer to each other on the machine; pair by pair.
class DistanceOrder {
 public:
  // False if a pair of `links` in the plan and `steps` on the machine contradicts one before it.
  bool add(uint8_t links, uint8_t steps);

 private:
  struct Range {
    uint8_t links, nearest, farthest;
  };
  std::vector<Range> ranges_;
};

}  // namespace collc
