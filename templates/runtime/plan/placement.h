// The allocation that serves a communicator, and the rank of its plan that each NCCL rank takes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "collc/tables.h"

namespace collc {

// Filled at creation of a communicator by place_ranks(), place_on_machines(), place_by_bus_ids() and place_by_links(), in this
// order; constant afterwards. "NCCL rank" is the user's number of a rank, "plan rank" its number in the allocation.
struct Placement {
  const Allocation *allocation = nullptr;  // null in a communicator of one rank
  const GpuSet *set = nullptr;             // the GPUs that the ranks use, or interchangeable ones; null if unknown
  uint32_t state = 0;                      // state of the library's machine, an index in Tables::states
  std::vector<uint32_t> plan_rank;         // by NCCL rank
  std::vector<uint32_t> nccl_rank;         // by plan rank
  std::vector<uint32_t> machine;  // machine of each NCCL rank, numbered in the order of ranks; empty if all are on one machine
  uint32_t local_machine = 0;  // machine of this rank
  std::vector<std::string> host_names;  // of each NCCL rank, for messages; empty if all are on one machine
  std::vector<uint64_t> bus_ids;  // of each NCCL rank's GPU, as in GpuPlace::bus; empty if never exchanged

  bool is_here(uint32_t rank) const { return machine.empty() || machine[rank] == local_machine; }

  uint32_t nmachines() const { return machine.empty() ? 1 : *std::max_element(machine.begin(), machine.end()) + 1; }

  // Returns "rank 3", or "rank 3 on HOST" if the ranks are on several machines.
  std::string name_of(uint32_t rank) const {
    return "rank " + std::to_string(rank) + (host_names.empty() ? "" : " on " + host_names[rank]);
  }
};

// Returns text such as "0,2,1".
inline std::string join_numbers(const std::vector<uint32_t> &numbers) {
  std::string text;
  for (const uint32_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

}  // namespace collc
