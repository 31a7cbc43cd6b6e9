// Places the ranks of a communicator by the number of ranks and by the GPUs that the user declares in COLLC_GPUS. Called while
// a communicator is created; nothing here blocks.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/live_machine.h"
#include "plan/placement.h"

namespace collc {

// Sets `gpus` to the declared GPUs, as indices in the library's topology and in the order of NCCL ranks. Without COLLC_GPUS:
// the first GPUs of the live machine, if COLLC_TOPOLOGY or COLLC_NUMBERING describes it and it has enough; else empty.
// COLLC_GPUS lists GPUs of the library's topology, or of the machine that COLLC_TOPOLOGY describes. COLLC_NUMBERING, which
// `collc run --topology` sets, lists the topology's GPU for each GPU of the live machine; COLLC_GPUS then lists numbers of
// the live machine's GPUs. Fails if a variable has a wrong value.
Status read_declared_gpus(uint32_t nranks, const LiveMachine &machine, std::vector<uint32_t> *gpus);

// Sets allocation, set, state and rank numbers of the placement for `nranks` ranks. `gpus` counts only if it has one entry per
// rank (as read_declared_gpus() returns it); otherwise ranks take the first GPUs, or the first allocation of this size. Fails
// if the library has no plan for these ranks, or for this machine.
Status place_ranks(uint32_t nranks, const LiveMachine &machine, const std::vector<uint32_t> &gpus, Placement *placement);

// Fails if COLLC_GPUS names fewer GPUs than there are ranks (`gpus` as read_declared_gpus() returns it). A longer list is
// allowed: it may be for a communicator of all ranks of the job, and says nothing about the GPUs of these ranks.
Status check_gpu_count(uint32_t nranks, const std::vector<uint32_t> &gpus);

}  // namespace collc
