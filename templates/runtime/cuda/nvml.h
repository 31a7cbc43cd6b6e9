// The part of NVML that reports the NVLinks and PCIe lanes of a GPU, and the distance of GPUs on PCIe, opened when it is first
// needed. NVML finds GPUs by bus id, also GPUs that CUDA_VISIBLE_DEVICES hides. The declarations are written here; names,
// values and versions are as in nvml.h.
#pragma once
#include "cuda/driver.h"
#include "plan/gpu_place.h"
#include "plan/pcie_paths.h"

namespace collc::cuda {

// Returns the place of a GPU and the far ends of its NVLinks; no links if NVML is missing or does not know.
GpuPlace find_place(DeviceNumber device);
// The numbers of a GPU's NVLinks that are up and lead to one of these GPUs, by their bus ids, or into a switch. Only this
// function asks for the device at the far end: an end that NVML does not report counts as a switch. Returns false if NVML
// reports nothing.
bool find_links(DeviceNumber device, const std::vector<uint64_t> &buses, std::vector<uint32_t> *found);
// Counts the links of `links` that are up. Returns false if NVML does not report one of them.
bool count_links(DeviceNumber device, const std::vector<uint32_t> &links, uint32_t *count);
// How many lanes a GPU's link of PCIe has now. False where NVML does not tell.
bool count_lanes(DeviceNumber device, uint32_t *lanes);
// How far it is from each of these on PCIe; kUnknownPath where NVML does not tell, and for all that share its bus id.
std::vector<uint8_t> find_paths(const GpuPlace &mine, const std::vector<GpuPlace> &places);

}  // namespace collc::cuda
