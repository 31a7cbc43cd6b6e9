// Finds out which GPUs of the library's topology the ranks of a communicator use, if the user has not declared them: by bus
// ids, by the NVLinks between the GPUs and by their PCIe paths. Called at creation, after place_ranks() and
// place_on_machines(), on every rank with equal arguments, so all ranks come to the same placement. Nothing here blocks.
#pragma once
#include <vector>

#include "base/status.h"
#include "plan/gpu_place.h"
#include "plan/nvlinks.h"
#include "plan/pcie_paths.h"
#include "plan/placement.h"

namespace collc {

// Gives each rank the plan rank of the GPU that has its bus id in the library's topology. Changes nothing if the topology lacks
// the bus id of some rank, if two ranks have the same, or if the library has no plan for these GPUs. For ranks on one machine.
void place_by_bus_ids(const std::vector<GpuPlace> &places, Placement *placement);

// Gives each rank the plan rank of a GPU with the same NVLinks. If the ranks are on several machines, those on one machine get
// GPUs of one server. Among several orders, prefers one in which GPUs that are closer on PCIe in the plan are not farther apart
// on the machine; this counts only if the plan uses PCIe. The placement stays if it fits already, or if nothing is known about
// links and paths. Fails on every rank with the same text if its allocation has NVLinks and the ranks' NVLinks fit no
// allocation of this size that has NVLinks. If its allocation has none, NVLinks do not count. A search by NVLinks that takes
// too many attempts leaves the placement as it is and logs a warning; a search by PCIe paths then goes on without them.
Status place_by_links(const NvLinks &links, const PciePaths &paths, const std::vector<GpuPlace> &places, Placement *placement);

}  // namespace collc
