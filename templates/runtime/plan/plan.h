// Looking things up in the step tables.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/call.h"
#include "plan/found_machine.h"

namespace collc {

// The tables that the generated source defines.
const Tables &tables();

// Fails if the tables are not what the compiler wrote; reads them through, once per process.
Status check_tables();

// A number that two builds share only if they are the same build.
uint64_t build_fingerprint();

// Whether the library's machine is one server of each of several kinds, of which a run finds one (COLLC_TOPOLOGY).
bool for_several_kinds();

// COLLC_GPUS as indices of the topology's GPUs, in the order of the ranks; empty if undeclared. COLLC_NUMBERING, which
// `collc run --topology` sets, lists for each GPU of the live machine the one of the topology that it stands for. For a machine
// that was found (COLLC_TOPOLOGY), COLLC_GPUS names the GPUs of that machine.
Status declared_gpus(uint32_t nranks, const FoundMachine &found, std::vector<uint32_t> *gpus);

// The allocation for `nranks` ranks that stand for `gpus` (indices of the topology; empty: undeclared).
Status place(uint32_t nranks, const FoundMachine &found, const std::vector<uint32_t> &gpus, Placement *placement);

// Fails if COLLC_GPUS (`gpus`, as declared_gpus reads it) names fewer GPUs than there are ranks. A longer list is one for
// other communicators, of all ranks of a job, say: then nobody said which GPUs these ranks are.
Status check_gpus(uint32_t nranks, const std::vector<uint32_t> &gpus);

}  // namespace collc
