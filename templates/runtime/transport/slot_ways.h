// Which way chunks go into the slots of a FIFO: through the caches, or past them.
//
// A line that a core has just written stands in its cache as modified. A core beside it, with a common cache, gets it from there
// at once; one further away (another part of the chip, another socket) waits several times as long as for memory, and reads
// sooner what was stored past the caches. Which is the case differs between processors and pairs of ranks, and on virtual
// machines from second to second. So it is measured while it runs: each end notes what its part costs, and the writer tries the
// other way now and then. What is computed stays the same.
#pragma once
#include <algorithm>
#include <cstdint>

namespace collc {

enum SlotWay : uint32_t { kThroughCaches = 0, kPastCaches = 1 };

// What one end's part of a chunk costs by and by, in ticks (now_ticks) per KiB; 0: not known. `before`: until now.
inline uint32_t learned_cost(uint32_t before, uint64_t ticks, uint64_t bytes) {
  const uint64_t found = std::min<uint64_t>(std::max<uint64_t>(1, ticks * 1024 / bytes), UINT32_MAX / 8);
  if (before == 0) return static_cast<uint32_t>(found);
  // Little of what takes longer: a rank that lost its core in the middle says nothing about copies.
  if (found > before) return static_cast<uint32_t>((3 * uint64_t{before} + std::min(found, 2 * uint64_t{before}) + 3) / 4);
  return static_cast<uint32_t>((before + 3 * found) / 4);
}

// Whether a chunk is one of many that went the same way: only then its slot stands in the caches as that way leaves it.
class WayRun {
 public:
  bool settled(uint32_t way, uint32_t slots) {
    length_ = way == way_ ? length_ + 1 : 1;
    way_ = way;
    return length_ > slots;
  }

 private:
  uint32_t way_ = kThroughCaches, length_ = 0;
};

// A writer's choice for one FIFO.
class SlotWays {
 public:
  // The way of the next chunk. `first`: the way to begin with; `readers(way)`: the cost of the readers, 0: not known.
  template <class Readers>
  uint32_t next(uint32_t first, uint32_t slots, const Readers &readers) {
    if (chunks_ == 0) usual_ = first;
    const uint64_t chunk = chunks_++;
    if (chunk >= next_look_) look(chunk, slots, readers);
    return chunk < trial_end_ ? 1 - usual_ : usual_;
  }

  void wrote(uint32_t way, uint32_t slots, uint64_t ticks, uint64_t bytes) {
    if (run_.settled(way, slots)) own_[way] = learned_cost(own_[way], ticks, bytes);
  }

 private:
  static constexpr uint64_t kLookEvery = 32, kFirstTrial = 16, kTried = 4, kTrialEvery = 512, kMostRatio = 8,
                            kMostBetween = 1 << 16;

  // In full, a chunk costs what both ends spend.
  template <class Readers>
  uint64_t cost(uint32_t way, const Readers &readers) const {
    const uint64_t own = own_[way], others = readers(way);
    return own != 0 && others != 0 ? own + others : 0;
  }

  template <class Readers>
  void look(uint64_t chunk, uint32_t slots, const Readers &readers) {
    next_look_ = chunk + kLookEvery;
    const uint64_t usual = cost(usual_, readers), other = cost(1 - usual_, readers);
    const bool known = usual != 0 && other != 0;
    if (known && 10 * other < 9 * usual) usual_ = 1 - usual_;
    // What the usual way costs has changed: so may the other.
    const bool changed = usual != 0 && tried_at_ != 0 && (2 * usual > 3 * tried_at_ || 3 * usual < 2 * tried_at_);
    if (chunk < next_trial_ && !changed) return;
    // The dearer the other way is, the more seldom it is tried; and where nothing is learnt, ever more seldom.
    if (known)
      between_ = kTrialEvery * std::min(kMostRatio, std::max(usual, other) / std::min(usual, other));
    else if (trial_end_ != 0)
      between_ = std::min(2 * between_, kMostBetween);
    tried_at_ = cost(usual_, readers);
    trial_end_ = chunk + slots + kTried;
    next_trial_ = chunk + between_;
    next_look_ = trial_end_ + slots;  // the readers are that far behind
  }

  uint32_t own_[2] = {};
  WayRun run_;
  uint32_t usual_ = kThroughCaches;
  uint64_t tried_at_ = 0;  // what the usual way cost at the last trial
  uint64_t chunks_ = 0;
  uint64_t next_look_ = kFirstTrial, next_trial_ = kFirstTrial, trial_end_ = 0, between_ = kTrialEvery;
};

}  // namespace collc
