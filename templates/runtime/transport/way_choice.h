// A choice of one of two ways by what they turn out to cost, while calls run. What is computed stays the same.
#pragma once
#include <algorithm>
#include <cstdint>

namespace collc {

// What a part of a chunk or of a call costs by and by, in ticks (now_ticks) per KiB; 0: not known. `before`: until now.
inline uint32_t learned_cost(uint32_t before, uint64_t ticks, uint64_t bytes) {
  const uint64_t found = std::min<uint64_t>(std::max<uint64_t>(1, ticks * 1024 / bytes), UINT32_MAX / 8);
  if (before == 0) return static_cast<uint32_t>(found);
  // Little of what takes longer: a rank that lost its core in the middle says nothing about copies.
  if (found > before) return static_cast<uint32_t>((3 * uint64_t{before} + std::min(found, 2 * uint64_t{before}) + 3) / 4);
  return static_cast<uint32_t>((before + 3 * found) / 4);
}

// Whether more than `behind` have gone the same way: only then slots and buffers stand in the caches as that way leaves them.
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

// A writer's choice of one of two ways, by what they cost: the one that it takes, and now and then, for `Tried` times and those that
// do not count, the other. It looks at the costs every `LookEvery` times. The first trial begins after `FirstTrial` times, the second
// `SecondTrial` after it, then twice as many later, up to `TrialEvery`.
template <uint64_t LookEvery, uint64_t FirstTrial, uint64_t Tried, uint64_t SecondTrial, uint64_t TrialEvery>
class WayChoice {
 public:
  // The next way. `first`: the one to begin with; `behind`: so many times at most are not known yet, or do not count after a change;
  // `cost(way)`: what it costs, 0: not known.
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
    // What the usual way costs has changed: so may the other. Where other jobs disturb what is noted, that is often so.
    const bool changed = time + 3 * between_ / 4 >= next_trial_ && usual != 0 && tried_at_ != 0 &&
                         (2 * usual > 3 * tried_at_ || 3 * usual < 2 * tried_at_);
    if (time < next_trial_ && !changed) return;
    // The dearer the other way is, the more seldom it is tried; and where nothing is learnt, ever more seldom.
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
  uint64_t tried_at_ = 0;  // what the usual way cost at the last trial
  uint64_t times_ = 0;
  uint64_t next_look_ = FirstTrial, next_trial_ = FirstTrial, trial_end_ = 0;
  uint64_t apart_ = SecondTrial, between_ = SecondTrial;  // from one trial to the next, if both ways cost alike; now
};

}  // namespace collc
