// The kernels and their verbs: all that a planted fault changes.
#include "kernels.h"

#define COLLC_DIRECT
#define COLLC_IN_SWITCH
#include "device.cu"
// A source of collc.codegen.specialise, with the table beside it and the list of its kernels.
#if defined(COLLC_WRITTEN)
#include COLLC_WRITTEN
#endif

namespace {

struct NamedKernel {
  const char *name;
  emulation::Kernel run;
};
#define COLLC_NAMED_KERNEL(name, type, protocol) {#name, &collc_##name},
const NamedKernel kKernels[] = {COLLC_SIMPLE_KERNELS(COLLC_NAMED_KERNEL) COLLC_DIRECT_KERNELS(COLLC_NAMED_KERNEL)
                                    COLLC_LL_KERNELS(COLLC_NAMED_KERNEL)
#if !defined(COLLC_PRE_VOLTA)
                                        COLLC_LL128_KERNELS(COLLC_NAMED_KERNEL) COLLC_SWITCH_KERNELS(COLLC_NAMED_KERNEL)
#endif
#if defined(COLLC_WRITTEN)
#define COLLC_NAMED_WRITTEN(name) {"written_" #name, &collc_written_##name},
                                            COLLC_WRITTEN_KERNELS(COLLC_NAMED_WRITTEN)
#endif
};

}  // namespace

#if defined(COLLC_WRITTEN)
const uint32_t *emulation::variants() { return collc::cuda::kVariants; }
#else
const uint32_t *emulation::variants() { return nullptr; }
#endif

emulation::Kernel emulation::kernel_named(const std::string &name) {
  for (const NamedKernel &known : kKernels)
    if (name == known.name) return known.run;
  return nullptr;
}

void emulation::exchange(const Exchange &launch) { collc_exchange(launch); }

void emulation::wait_for_lane(uint64_t *flag, uint32_t writer) {
  if (thread_index() == 0) {
    for (uint32_t spins = 1; flag_poll(flag) == 0; ++spins) backoff(spins);
    flag_acquire(flag);
  } else if (thread_index() == writer) {
    flag_store(flag, 1);
  }
  barrier();
}

uint32_t emulation::lockstep() {
#if defined(COLLC_PRE_VOLTA)
  return kWarp;
#else
  return 0;
#endif
}
