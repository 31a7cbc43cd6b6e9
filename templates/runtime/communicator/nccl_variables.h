// NCCL's own environment variables: jobs set them for NCCL, and what they ask for counts here too where it has a meaning.
#pragma once
#include <cstdint>

namespace collc {

// At most so many channels: NCCL_MAX_CTAS, else NCCL_MAX_NCHANNELS, else `configured` (as in NCCL, a variable goes before the
// configuration); 0: as many as the tables say.
uint32_t most_channels(uint32_t configured);

// Whether NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC, forbids that GPUs read each other's memory.
bool forbids_peer_access();

// Whether NCCL_LAUNCH_ORDER_IMPLICIT asks that the kernels of a GPU begin in the order of their calls, whatever communicators
// and streams they are on.
bool orders_launches();

// One line for every variable that is set and not followed, with the reason where there is more to say; once per process.
void say_what_is_not_followed();

}  // namespace collc
