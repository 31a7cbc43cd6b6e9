// Threads that ask NVML again and again how much of a GPU's links is there: one for the NVLinks of a GPU, one for its PCIe. They
// do nothing else and hold no lock while they ask: NVML may stand still where a GPU is in trouble, and nobody waits for it, neither
// the thread that aborts calls nor those that look at other GPUs.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver.h"

namespace collc::cuda {

struct WatchedLinks {
  DeviceNumber device = 0;
  std::vector<uint32_t>
      links;  // the numbers of those that were up at first and lead to GPUs of the communicator, or into switches
  std::atomic<uint32_t> up{0};  // as many as lately
  std::atomic<uint32_t> missing{0};  // looks in a row at which fewer were up; one at which NVML did not tell changes nothing
};

// An idle link may have fewer lanes, so only what is seen while calls run counts.
struct WatchedLanes {
  DeviceNumber device = 0;
  std::atomic<bool> busy{false};  // a call has run since the last look
  std::atomic<uint32_t> most{0};  // lanes, of all looks
  std::atomic<uint32_t> lately{0};
  std::atomic<uint32_t> missing{0};  // looks in a row at which there were fewer, as above
};

// Watched as long as the caller keeps it. Null where NVML does not tell, no link is up, or no thread starts.
std::shared_ptr<WatchedLinks> watch_links(DeviceNumber device, const std::vector<uint64_t> &buses);
std::shared_ptr<WatchedLanes> watch_lanes(DeviceNumber device);

}  // namespace collc::cuda
