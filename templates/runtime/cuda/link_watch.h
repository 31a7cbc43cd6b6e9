// Threads that ask NVML again and again how much of a GPU's links is there: one for the NVLinks of a GPU, one for its PCIe.
// They do nothing else and hold no lock while they ask: NVML may stand still where a GPU is in trouble, and nobody waits for
// it, neither the thread that aborts calls nor those that look at other GPUs.
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
  std::atomic<uint32_t> up{0};  // the number at the last look
  std::atomic<uint32_t> missing{0};  // looks in a row with fewer links up; a look without an answer of NVML changes nothing
};

struct WatchedLanes {
  DeviceNumber device = 0;
  std::atomic<uint64_t> latest{0};  // look, as pack_lane_look() makes it
};

// When a look began, in milliseconds (base/clock.h), and the lanes that it found.
inline uint64_t pack_lane_look(int64_t began, uint32_t lanes) { return static_cast<uint64_t>(began) << 8 | (lanes & 0xff); }

// Judges a thread's looks at lanes, in the order of time. An idle link may have fewer of them, so a look that finds fewer
// counts only where calls of the rank ran from before it began until after it had ended, whenever the watcher looked at them.
class LaneLooks {
 public:
  static constexpr int64_t kFarApartMs = 2000;  // counted looks with more between them are not in a row

  // To be called again and again: `runs`, whether a call runs at `now`; `latest` of WatchedLanes.
  void see(uint64_t latest, bool runs, int64_t now) {
    if (!runs) running_since_ = kIdle;
    if (runs && running_since_ == kIdle) running_since_ = now;
    if (latest == seen_) return;
    seen_ = latest;
    const auto began = static_cast<int64_t>(latest >> 8);
    lately_ = static_cast<uint32_t>(latest & 0xff);
    if (lately_ >= most_) {
      most_ = lately_;
      missing_ = 0;
      return;
    }
    if (running_since_ == kIdle || running_since_ >= began) return;
    missing_ = missing_ != 0 && began - counted_ <= kFarApartMs ? missing_ + 1 : 1;
    counted_ = began;
  }
  uint32_t most() const { return most_; }
  uint32_t lately() const { return lately_; }
  uint32_t missing() const { return missing_; }  // looks in a row with fewer lanes than at an earlier look

 private:
  static constexpr int64_t kIdle = -1;
  int64_t running_since_ = kIdle, counted_ = 0;
  uint64_t seen_ = 0;
  uint32_t most_ = 0, lately_ = 0, missing_ = 0;
};

// Watched as long as the caller keeps it. Null where NVML does not tell, no link is up, or no thread starts.
std::shared_ptr<WatchedLinks> watch_links(DeviceNumber device, const std::vector<uint64_t> &buses);
std::shared_ptr<WatchedLanes> watch_lanes(DeviceNumber device);

}  // namespace collc::cuda
