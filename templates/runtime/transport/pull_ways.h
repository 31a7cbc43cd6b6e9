// Chooses whether a large broadcast to other processes goes through slots or the kernel copies it from the root's memory.
//
// Through slots every byte is copied twice, but by two cores at the same time and through their caches. The kernel copies
// once, but has to fetch the data that the root has just written from the cache of the root's core. Which of them takes
// longer depends on the job's use of the buffer between two broadcasts, and no measurement of the machine knows it. Therefore
// each reader records how long it takes from the first chunk to the last, by way and size, and the root tries the other way
// now and then.
//
// Readers store costs in shared memory and the root loads them, all relaxed: a cost is a hint, no other data depends on it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "transport/way_choice.h"

namespace collc {

enum PullWay : uint32_t { kThroughSlots = 0, kPulled = 1 };

// The costs that a reader has recorded: ticks (now_ticks) per KiB; 0: unknown. Sizes are grouped by powers of two, because
// the time depends on what the caches can hold.
class PullCosts {
 public:
  // In bytes. Below this size nothing is learned, because a trial costs as much as it may gain.
  static constexpr uint64_t kLeast = 2 << 20;
  static constexpr uint32_t kSizes = 8;  // the last group is 256 MiB and more

  static uint32_t size(uint64_t bytes) {
    const auto power = static_cast<uint32_t>(63 - __builtin_clzll(bytes / kLeast));
    return std::min(power, kSizes - 1);
  }
  uint32_t at(uint32_t way, uint64_t bytes) const { return costs_[way][size(bytes)].load(std::memory_order_relaxed); }
  void note(uint32_t way, uint64_t bytes, uint64_t ticks) {
    const uint32_t learned = learned_cost(at(way, bytes), ticks, bytes);
    costs_[way][size(bytes)].store(static_cast<uint16_t>(std::min<uint32_t>(learned, UINT16_MAX)), std::memory_order_relaxed);
  }

 private:
  std::atomic<uint16_t> costs_[2][kSizes];
};

// The root's choices for one FIFO.
class PullWays {
 public:
  // Returns the way of the next broadcast. `first` is the way at the start. `readers(way)` returns the cost of the slowest
  // reader; 0: unknown.
  template <class Readers>
  uint32_t next(uint32_t first, uint64_t bytes, uint64_t slot_bytes, const Readers &readers) {
    return choices_[PullCosts::size(bytes)].next(first, behind(bytes, slot_bytes), readers);
  }

  // Returns how many broadcasts after a change of way do not count. All slots together (`slot_bytes` bytes) first have to be
  // loaded from memory once, and readers may still be in one broadcast when the next one begins.
  static uint32_t behind(uint64_t bytes, uint64_t slot_bytes) { return static_cast<uint32_t>(1 + slot_bytes / bytes); }

 private:
  WayChoice<1, 3, 2, 64, 512> choices_[PullCosts::kSizes];
};

// A reader's record of the broadcasts that it reads from one FIFO.
class PullReader {
 public:
  // Call when the first chunk has arrived.
  void begin(uint64_t ticks, uint32_t way) { begun_ticks_ = ticks, way_ = way; }
  // Call when all chunks have been read. `slot_bytes`: of all slots of the FIFO.
  void end(uint64_t ticks, uint64_t bytes, uint64_t slot_bytes, PullCosts *costs) {
    if (runs_[PullCosts::size(bytes)].settled(way_, PullWays::behind(bytes, slot_bytes)))
      costs->note(way_, bytes, ticks - begun_ticks_);
  }

 private:
  uint64_t begun_ticks_ = 0;
  uint32_t way_ = kThroughSlots;
  WayRun runs_[PullCosts::kSizes];  // one run per size group, because broadcasts of alternating sizes may go different ways
};

}  // namespace collc
