// The kernels of the CUDA target: one table executor per type and operation. Knows no topology, so it is compiled once
// and embedded in every library.
#include "collc/cuda/executor.h"

using namespace collc::cuda;

#define COLLC_DEFINE_KERNEL(name, type, op)                                                          \
  COLLC_KERNEL(kMaxThreads) collc_##name(COLLC_KERNEL_ARGUMENT(Launch) launch) { run_block<type, op>(launch); }
COLLC_KERNELS(COLLC_DEFINE_KERNEL)
