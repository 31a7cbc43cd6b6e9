// Chooses between two ways of moving data by their measured costs, while calls run. The results of calls do not depend on the
// choice. An object belongs to one rank; nothing blocks.
#pragma once
#include <algorithm>
#include <cstdint>

namespace collc {

// Returns the new running average of a cost, in ticks (now_ticks) per KiB; 0: unknown. `before` is the average so far.
inline uint32_t learned_cost(uint32_t before, uint64_t ticks, uint64_t bytes) {
  const uint64_t found = std::min<uint64_t>(std::max<uint64_t>(1, ticks * 1024 / bytes), UINT32_MAX / 8);
  if (before == 0) return static_cast<uint32_t>(found);
  // A higher cost has little weight, and at most twice the average counts, because a rank that lost its core during the copy
  // says nothing about copies.
  if (found > before) return static_cast<uint32_t>((3 * uint64_t{before} + std::min(found, 2 * uint64_t{before}) + 3) / 4);
  return static_cast<uint32_t>((before + 3 * found) / 4);
}

// Counts how many chunks or calls in a row went the same way. settled() returns whether these are more than `behind`; only
// then are slots and buffers in the caches in the state that this way leaves.
class WayRun {
 public:
  bool settled(uint32_t way, uint32_t behind) {
    length_ = way == way_ ? length_ + 1 : 1;
    way_ = way;
    return length_ > behind;
  }

 private:
  uint32_t way_ = 0, length_ = 0;
};

// A writer's choice of one of two ways. It mostly takes the usual way, which is the cheaper one. Now and then it takes the
// other way, for `Tried` times in addition to those that do not count. It compares the costs every `LookEvery` times. The
// first trial begins after `FirstTrial` times, the second one `SecondTrial` times later; the interval then doubles up to
// `TrialEvery`.
template <uint64_t LookEvery, uint64_t FirstTrial, uint64_t Tried, uint64_t SecondTrial, uint64_t TrialEvery>
class WayChoice {
 public:
  // Returns the next way. `first` is the way at the start. Up to `behind` times may not be known yet, or do not count after a
  // change of way. `cost(way)` returns the cost of a way; 0: unknown.
  template <class Cost>
  uint32_t next(uint32_t first, uint32_t behind, const Cost &cost) {
    if (times_ == 0) usual_ = first;
    const uint64_t time = times_++;
    if (time >= next_look_) look(time, behind, cost);
    return time < trial_end_ ? 1 - usual_ : usual_;
  }

 private:
  static constexpr uint64_t kMostRatio = 8, kMostBetween = 128 * TrialEvery;

  template <class Cost>
  void look(uint64_t time, uint32_t behind, const Cost &cost) {
    next_look_ = time + LookEvery;
    const uint64_t usual = cost(usual_), other = cost(1 - usual_);
    const bool known = usual != 0 && other != 0;
    if (known && 10 * other < 9 * usual) usual_ = 1 - usual_;
    // The cost of the usual way has changed since the last trial, so the other one may have changed, too. At least a quarter
    // of the interval must have passed, because other jobs often disturb the measurements.
    const bool changed = time + 3 * between_ / 4 >= next_trial_ && usual != 0 && tried_at_ != 0 &&
                         (2 * usual > 3 * tried_at_ || 3 * usual < 2 * tried_at_);
    if (time < next_trial_ && !changed) return;
    // The more expensive the other way is, the less often it is tried. If a trial teaches nothing, trials also become less
    // frequent.
    if (known) {
      between_ = apart_ * std::min(kMostRatio, std::max(usual, other) / std::min(usual, other));
      apart_ = std::min(2 * apart_, TrialEvery);
    } else if (trial_end_ != 0) {
      between_ = std::min(2 * between_, kMostBetween);
    }
    tried_at_ = cost(usual_);
    trial_end_ = time + behind + Tried;
    next_trial_ = time + between_;
    next_look_ = trial_end_ + behind;
  }

  uint32_t usual_ = 0;
  uint64_t tried_at_ = 0;  // cost of the usual way at the last trial
  uint64_t times_ = 0;
  uint64_t next_look_ = FirstTrial, next_trial_ = FirstTrial, trial_end_ = 0;
  uint64_t apart_ = SecondTrial, between_ = SecondTrial;  // times between two trials: if both ways cost the same; now
};

}  // namespace collc
