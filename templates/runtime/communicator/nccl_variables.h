// The environment variables of NCCL. Jobs set them for NCCL; this library follows the variables that have a meaning here.
#pragma once
#include <cstdint>

namespace collc {

// Returns the most channels: NCCL_MAX_CTAS, else NCCL_MAX_NCHANNELS, else `configured` (as in NCCL, a variable has precedence
// over the configuration); 0: the number of the tables.
uint32_t most_channels(uint32_t configured);

// Returns true if NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC, forbids that GPUs read each other's memory.
bool forbids_peer_access();

// Returns true if NCCL_LAUNCH_ORDER_IMPLICIT requests that the kernels of a GPU begin in the order of their calls, on any
// communicators and streams.
bool orders_launches();

// One line for every variable that is set and not followed, with the reason where there is more to say; once per process.
void say_what_is_not_followed();

}  // namespace collc
