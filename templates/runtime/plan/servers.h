// Ranks on several machines: which of the plan's servers each machine is.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/call.h"

namespace collc {

// True if some plan of this library has ranks on several servers.
bool spans_servers();

// Fills in `machine` and `home` of a placement for rank `rank`; `machines` has a number of its machine for each NCCL rank.
// Unless the ranks declared their GPUs, machines become servers of the plan with as many GPUs. Fails if ranks that stand for
// GPUs of one server are on different machines. Ranks of several servers may share a machine.
Status place_on_machines(const std::vector<uint64_t> &machines, bool declared, uint32_t rank, Placement *placement);

}  // namespace collc
