// The kernels of the CUDA target: table executors, one per protocol and element type, and the kernel of transfers.
// They do not depend on the topology, so they are compiled once and embedded in every library.
#include "collc/cuda/exchange.h"
#include "collc/cuda/executor.h"

using namespace collc::cuda;

#define COLLC_DEFINE_KERNEL(name, type, protocol) \
  COLLC_KERNEL(kMaxThreads) collc_##name(COLLC_KERNEL_ARGUMENT(Launch) launch) { run_block<type, protocol<type>>(launch); }
COLLC_SIMPLE_KERNELS(COLLC_DEFINE_KERNEL)
COLLC_LL_KERNELS(COLLC_DEFINE_KERNEL)
#if !defined(COLLC_PRE_VOLTA)
COLLC_LL128_KERNELS(COLLC_DEFINE_KERNEL)
#endif

// Only in libraries whose ranks read the buffers of other ranks.
#if defined(COLLC_DIRECT)
#include "collc/cuda/direct.h"
COLLC_DIRECT_KERNELS(COLLC_DEFINE_KERNEL)
#endif

// Only in libraries with programs that reduce inside a switch, for GPUs that have the instructions (sm_90 and newer).
#if defined(COLLC_IN_SWITCH) && !defined(COLLC_PRE_VOLTA) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#include "collc/cuda/in_switch.h"
COLLC_SWITCH_KERNELS(COLLC_DEFINE_KERNEL)
#endif

COLLC_KERNEL(kMaxThreads) collc_exchange(COLLC_KERNEL_ARGUMENT(Exchange) launch) { ExchangeLane(launch).run(); }
