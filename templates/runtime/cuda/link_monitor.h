// Judges whether the links of one rank's GPU have failed (COLLC_WATCH_LINKS): its NVLinks by NVML, and the lanes of its PCIe
// link (link_watch.h).
//
// Owner: PathShares. Threads: only the watcher, after begin(). No call blocks: other threads ask NVML.
#pragma once
#include <memory>
#include <string>

#include "base/clock.h"
#include "cuda/link_watch.h"
#include "executor/backend.h"

namespace collc::cuda {

class LinkMonitor {
 public:
  // Begins to watch the links of the plan. Without it, or where NVML is missing, no link counts as failed.
  void begin(const RankContext &context, DeviceNumber device);
  // Must be called every few milliseconds; `runs`: a call of this rank has not ended.
  void see(bool runs) {
    if (lanes_ != nullptr) looks_.see(lanes_->latest.load(std::memory_order_acquire), runs, now_ms());
  }
  // Each returns what is missing, in words; empty: nothing, or nobody watches.
  std::string find_lost_links() const;
  std::string find_lost_lanes() const;

 private:
  std::shared_ptr<WatchedLinks> links_;  // null: not watched
  std::shared_ptr<WatchedLanes> lanes_;
  LaneLooks looks_;
};

}  // namespace collc::cuda
