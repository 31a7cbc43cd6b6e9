// What the driver knows of the kernels. Their own header, device.h's stand-in, differs from build to build: with a fault
// planted, in the verbs too. So no inline function of it may be in the driver, which is compiled once.
#pragma once
#include <cstdint>
#include <string>

#include "collc/cuda/layout.h"

namespace emulation {

using Kernel = void (*)(const collc::cuda::Launch &);

// The kernel of that name without `collc_`; null if this build has none.
Kernel kernel_named(const std::string &name);

// The variants that are written out in this build, as collc.codegen.specialise puts them; null: none.
const uint32_t *variants();

void exchange(const collc::cuda::Exchange &launch);

// Thread 0 waits for a flag that thread `writer` stores.
void wait_for_lane(uint64_t *flag, uint32_t writer);

// Lanes that keep step: those of a warp in a build for Pascal, else none.
uint32_t lockstep();

}  // namespace emulation
