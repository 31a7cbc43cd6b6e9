// The times of each channel's calls on the host target (COLLC_BREAKDOWN).
//
// Owner: HostRank. Threads: the one that makes calls counts and reads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "executor/backend.h"

namespace collc {

class Breakdown {
 public:
  bool is_on() const { return is_on_; }
  void begin_call(uint32_t nchannels) {
    if (!is_on_) return;
    times_.resize(std::max<size_t>(times_.size(), nchannels));
    begun_ns_ = now_ns();
  }
  // Null if nothing is counted.
  ChannelTimes *channel(size_t number) { return is_on_ ? &times_[number] : nullptr; }
  // Counts the part of the call during which a channel was neither copying nor reducing. `busy_ns`: the other part.
  void end_channel(size_t number, uint64_t busy_ns) {
    if (is_on_) times_[number].waiting += now_ns() - begun_ns_ - busy_ns;
  }
  const std::vector<ChannelTimes> &times() const { return times_; }

 private:
  const bool is_on_ = is_set("COLLC_BREAKDOWN");
  uint64_t begun_ns_ = 0;
  std::vector<ChannelTimes> times_;
};

}  // namespace collc
