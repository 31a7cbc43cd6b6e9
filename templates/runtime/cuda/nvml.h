// The part of NVML that says which NVLinks and lanes of PCIe a GPU has, and how far apart GPUs are on PCIe, opened when it is first needed. NVML knows GPUs by bus id, also those
// that CUDA_VISIBLE_DEVICES hides. Declarations are our own; names, values and versions are those of nvml.h.
#pragma once
#include "cuda/driver.h"
#include "plan/gpu_place.h"
#include "plan/pcie_paths.h"

namespace collc::cuda {

// Where a GPU is and what its NVLinks lead to; nothing about links where NVML is not there or does not know.
GpuPlace find_place(DeviceNumber device);
// The numbers of a GPU's NVLinks that are up and lead to one of these GPUs, by their bus ids, or into a switch. What is at the other
// end is asked here alone: an end that NVML does not tell counts as a switch. False where NVML does not tell.
bool find_links(DeviceNumber device, const std::vector<uint64_t> &buses, std::vector<uint32_t> *found);
// How many of these links are up. False where NVML does not tell of one of them.
bool count_links(DeviceNumber device, const std::vector<uint32_t> &links, uint32_t *count);
// How many lanes a GPU's link of PCIe has now. False where NVML does not tell.
bool count_lanes(DeviceNumber device, uint32_t *lanes);
// How far it is from each of these on PCIe; kUnknownPath where NVML does not tell, and for all that share its bus id.
std::vector<uint8_t> find_paths(const GpuPlace &mine, const std::vector<GpuPlace> &places);

}  // namespace collc::cuda
