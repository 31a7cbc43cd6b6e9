// Which way chunks go into the slots of a FIFO: through the caches, or past them.
//
// A line that a core has just written stands in its cache as modified. A core beside it, with a common cache, gets it from there
// at once; one further away (another part of the chip, another socket) waits several times as long as for memory, and reads
// sooner what was stored past the caches. Which is the case differs between processors and pairs of ranks, and on virtual
// machines from second to second. So it is measured while it runs: each end notes what its part costs, and the writer tries the
// other way now and then. What is computed stays the same.
#pragma once
#include <cstdint>

#include "transport/way_choice.h"

namespace collc {

enum SlotWay : uint32_t { kThroughCaches = 0, kPastCaches = 1 };

// A writer's choice for the slots of one FIFO.
class SlotWays {
 public:
  // The way of the next chunk. `first`: the way to begin with; `readers(way)`: the cost of the readers, who are as many chunks behind
  // as there are slots, 0: not known.
  template <class Readers>
  uint32_t next(uint32_t first, uint32_t slots, const Readers &readers) {
    // In full, a chunk costs what both ends spend.
    return choice_.next(first, slots, [this, &readers](uint32_t way) {
      const uint64_t own = own_[way], others = readers(way);
      return own != 0 && others != 0 ? own + others : 0;
    });
  }

  void wrote(uint32_t way, uint32_t slots, uint64_t ticks, uint64_t bytes) {
    if (run_.settled(way, slots)) own_[way] = learned_cost(own_[way], ticks, bytes);
  }

 private:
  uint32_t own_[2] = {};
  WayRun run_;
  WayChoice<32, 16, 4, 512, 512> choice_;
};

}  // namespace collc
