// Which of the library's GPUs the ranks of a communicator are: by bus ids, by the NVLinks between them, by their PCIe paths.
#pragma once
#include <vector>

#include "base/status.h"
#include "plan/call.h"
#include "plan/gpu_place.h"
#include "plan/pcie_paths.h"

namespace collc {

// The NVLinks that are up between the GPUs of ranks, and from each of them into switches.
struct NvLinks {
  uint32_t nranks = 0;              // 0: nothing is known
  std::vector<uint32_t> direct;     // [rank * nranks + other], as both ends say
  std::vector<uint32_t> into_switch;  // by rank

  // How many of them a transfer between two ranks may use at once, directly or through switches.
  uint32_t between(uint32_t a, uint32_t b) const;
};

// Nothing is known where a driver tells nothing, or where ranks share a GPU. `machine`: of each rank, as in Placement; bus ids
// of one mean nothing on another.
NvLinks count_links(const std::vector<GpuPlace> &places, const std::vector<uint32_t> &machine = {});

// Gives each rank the part of the GPU that has its bus id in the library's topology. Nothing changes where the topology does
// not know the GPUs of all ranks, or the library does not serve them.
void place_by_bus_ids(const std::vector<GpuPlace> &places, Placement *placement);

// Gives each rank the part of a GPU with the same links, unless it has one already. Ranks on one machine get those of one
// server. The order of ranks stays as it is where
// that fits. Ranks whose GPUs fit no set of the library are refused, with the same words on every rank. Plans without
// NVLinks fit everything. Of several orders that fit, one is taken in which GPUs that are near each other in the plan are so on
// PCIe too, if there is one, and FIFOs of the plan go over PCIe.
Status place_by_links(const NvLinks &links, const PciePaths &paths, const std::vector<GpuPlace> &places, Placement *placement);

}  // namespace collc
