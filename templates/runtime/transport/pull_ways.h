// Whether a large broadcast to other processes goes through slots, or the kernel copies it out of the root's memory.
//
// Through slots every byte is copied twice, but on two cores at once and through their caches; the kernel copies once, and has to
// fetch what the root has just written out of its core's cache. Which takes longer depends on what the job does with the buffer
// between its broadcasts, which no measurement of the machine knows. So a reader notes how long it takes from the first chunk to the
// last, by way and size, and the root tries the other way now and then.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "transport/way_choice.h"

namespace collc {

enum PullWay : uint32_t { kThroughSlots = 0, kPulled = 1 };

// What a reader has noted: ticks (now_ticks) per KiB, 0: not known. By powers of two of bytes: what the caches hold counts.
class PullCosts {
 public:
  // Bytes. Of smaller broadcasts nothing is learnt: a trial costs them as much as it may bring.
  static constexpr uint64_t kLeast = 2 << 20;
  static constexpr uint32_t kSizes = 8;  // the last one: 256 MiB and more

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

// A writer's choices for one FIFO.
class PullWays {
 public:
  // The way of the next broadcast. `first`: the way to begin with; `readers(way)`: the cost of the slowest reader, 0: not known.
  template <class Readers>
  uint32_t next(uint32_t first, uint64_t bytes, uint64_t slot_bytes, const Readers &readers) {
    return choices_[PullCosts::size(bytes)].next(first, behind(bytes, slot_bytes), readers);
  }

  // After a change of way so many do not count: all slots together, of `slot_bytes`, come out of memory once, and readers may be in one
  // broadcast while the next begins.
  static uint32_t behind(uint64_t bytes, uint64_t slot_bytes) { return static_cast<uint32_t>(1 + slot_bytes / bytes); }

 private:
  WayChoice<1, 3, 2, 64, 512> choices_[PullCosts::kSizes];
};

// What a reader knows of its own broadcasts over one FIFO.
class PullReader {
 public:
  // The first chunk is there.
  void begin(uint64_t ticks, uint32_t way) { begun_ticks_ = ticks, way_ = way; }
  // All has been read.
  void end(uint64_t ticks, uint64_t bytes, uint64_t slot_bytes, PullCosts *costs) {
    if (runs_[PullCosts::size(bytes)].settled(way_, PullWays::behind(bytes, slot_bytes)))
      costs->note(way_, bytes, ticks - begun_ticks_);
  }

 private:
  uint64_t begun_ticks_ = 0;
  uint32_t way_ = kThroughSlots;
  WayRun runs_[PullCosts::kSizes];  // sizes in turn may go different ways
};

}  // namespace collc
