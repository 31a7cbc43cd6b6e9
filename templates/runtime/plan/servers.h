// Places ranks that run on several machines: which server of the plan each machine becomes. Called at creation; nothing blocks.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/placement.h"

namespace collc {

// Returns whether some allocation of this library has ranks on several servers.
bool spans_servers();

// Sets `machine` and `local_machine` of a placement for NCCL rank `rank`; `machines` has an identifier of each NCCL rank's
// machine (Introduction::machine). Unless `is_declared` (the user has declared the ranks' GPUs), each machine becomes a server
// of the plan with as many GPUs as it has ranks. Fails if ranks on different machines have GPUs of one server of the plan.
// Ranks of different servers may be on one machine.
Status place_on_machines(const std::vector<uint64_t> &machines, bool is_declared, uint32_t rank, Placement *placement);

}  // namespace collc
