// Where the GPU of a rank is, and what its links lead to, as the driver tells it.
#pragma once
#include <cstdint>

namespace collc {

constexpr uint32_t kMostGpuLinks = 40;
constexpr uint64_t kIntoSwitch = ~uint64_t{0};

// What a rank tells the others at creation. A bus id is packed into a number, which is never 0.
struct GpuPlace {
  uint64_t bus;     // 0: not known
  uint32_t known;   // 1: `links` are what the driver says; 0: it says nothing about links
  uint32_t nlinks;  // that are up
  uint64_t links[kMostGpuLinks];  // the bus id of the GPU at the other end of each, or kIntoSwitch
};

}  // namespace collc
