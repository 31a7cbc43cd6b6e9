// Large all_gathers and broadcasts by the copy engines of GPUs (COLLC_COPY_ENGINES), without a kernel.
//
// Where one thread has the calls of all ranks, it knows all addresses: the GPU of each rank copies from its own memory into the
// outputs of the others, and events order the streams. Else copies go through memory of the library: staged_copies.h.
#pragma once
#include "cuda/launches.h"

namespace collc::cuda {

// Puts the calls with one number of one communicator on their streams, if copy engines are to do them; false: kernels do.
bool run_by_copies(const Together &round, Status *outcome);

}  // namespace collc::cuda
