// The part of NVML that says which NVLinks a GPU has, opened when it is first needed. NVML knows GPUs by bus id, also those
// that CUDA_VISIBLE_DEVICES hides. Declarations are our own; names, values and versions are those of nvml.h.
#pragma once
#include "cuda/driver.h"
#include "plan/gpu_place.h"

namespace collc::cuda {

// Where a GPU is and what its NVLinks lead to; nothing about links where NVML is not there or does not know.
GpuPlace find_place(DeviceNumber device);

}  // namespace collc::cuda
