// The driver's declarations of the kernels. The header of the kernels, the stand-in for device.h, differs between builds, because
// planted faults change its verbs. The driver is compiled once, so it must not contain inline functions of that header.
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

// Returns the number of lanes in lockstep: a warp's lanes in a build for Pascal, else 0.
uint32_t lockstep();

}  // namespace emulation
