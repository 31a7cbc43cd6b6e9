// The PCI bus id of a rank's GPU and the far ends of its NVLinks, as the driver reports them (cuda/nvml.h). Ranks exchange this
// struct at creation, byte by byte.
#pragma once
#include <cstdint>

namespace collc {

constexpr uint32_t kMaxGpuLinks = 40;  // NVLinks of a GPU that are examined
constexpr uint64_t kIntoSwitch = ~uint64_t{0};  // far end of an NVLink: a switch, or a device that the driver does not name

// Packed bus ids are domain << 32 | bus << 16 | device << 8 | 1, so no valid id is 0.
struct GpuPlace {
  uint64_t bus;  // packed bus id; 0 if unknown
  uint32_t has_links;  // 1 if the driver reports the state of any NVLink; 0 if NVLinks are unknown
  uint32_t nlinks;  // entries of `links`: active NVLinks to a GPU or a switch
  uint64_t links[kMaxGpuLinks];  // packed bus id of the GPU at the far end, or kIntoSwitch
};

}  // namespace collc
