// Chooses how chunks are stored into the slots of a FIFO: through the caches, or past them with streaming stores.
//
// A line that a core has just written is modified in its cache. A near core, which shares a cache, gets the line from there
// at once. A far core (on another part of the chip, or on another socket) waits several times as long as for memory, and so
// reads data sooner that was stored past the caches. Which case applies differs between processors and pairs of ranks, and on
// virtual machines from second to second. So it is measured while calls run: each end records the cost of its part, and the
// writer tries the other way now and then. The results of calls do not depend on the choice.
#pragma once
#include <cstdint>

#include "transport/way_choice.h"

namespace collc {

enum SlotWay : uint32_t { kThroughCaches = 0, kPastCaches = 1 };

// A writer's choice for the slots of one FIFO.
class SlotWays {
 public:
  // Returns the way of the next chunk. `first` is the way at the start. `readers(way)` returns the cost of the readers; 0:
  // unknown. Readers may be up to `slots` chunks behind.
  template <class Readers>
  uint32_t next(uint32_t first, uint32_t slots, const Readers &readers) {
    // The full cost of a chunk is what both ends spend.
    return choice_.next(first, slots, [this, &readers](uint32_t way) {
      const uint64_t own = own_[way], others = readers(way);
      return own != 0 && others != 0 ? own + others : 0;
    });
  }

  // Records that storing a chunk of `bytes` by `way` took `ticks`.
  void wrote(uint32_t way, uint32_t slots, uint64_t ticks, uint64_t bytes) {
    if (run_.settled(way, slots)) own_[way] = learned_cost(own_[way], ticks, bytes);
  }

 private:
  uint32_t own_[2] = {};
  WayRun run_;
  WayChoice<32, 16, 4, 512, 512> choice_;
};

}  // namespace collc
