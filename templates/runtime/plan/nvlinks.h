// The active NVLinks between the GPUs of a communicator's ranks, as their drivers report them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/gpu_place.h"

namespace collc {

struct NvLinks {
  uint32_t nranks = 0;                // 0: unknown, and both arrays are empty
  std::vector<uint32_t> direct;       // [rank * nranks + other]: links that both ends report
  std::vector<uint32_t> into_switch;  // by rank: links from its GPU into switches

  // Returns how many links a transfer between two ranks can use at once, directly and through switches; 0 if unknown.
  uint32_t between(uint32_t a, uint32_t b) const;
};

// Counts the links of all ranks. `machine` is Placement::machine: bus ids are compared only on one machine. Returns NvLinks
// with nranks 0 if some driver reports no bus id or no link states, or if two ranks share a GPU.
NvLinks count_links(const std::vector<GpuPlace> &places, const std::vector<uint32_t> &machine = {});

// Returns text such as "rank 0 (0000:1a:00): 2 to rank 1; rank 1 (0000:1b:00): 6 into switches", cut off after about 400 bytes.
std::string describe_links(const NvLinks &links, const std::vector<GpuPlace> &places);

}  // namespace collc
