// A thread that asks NVML again and again how many NVLinks of GPUs are up. It does nothing else and holds no lock while it asks:
// NVML may stand still where a GPU is in trouble, and nobody waits for it, least of all the thread that aborts calls.
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

// Watched as long as the caller keeps it. Null where NVML does not tell, no link is up, or no thread starts.
std::shared_ptr<WatchedLinks> watch_links(DeviceNumber device, const std::vector<uint64_t> &buses);

}  // namespace collc::cuda
