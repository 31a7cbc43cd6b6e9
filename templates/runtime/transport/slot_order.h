// Which part of a FIFO's data each slot uses. Where ranks share cores, all of them have had their turn before a slot comes round
// again, and of what lies in between a cache keeps little: a writer takes the first part that is free in place of the slot's own, so
// that readers who keep up need no more of it than stands in a cache. Between ranks with a core each it is the other way round (fifo.h).
#pragma once
#include <cstdint>

namespace collc {

// Of a writer. Slots exchange their parts, so no two ever have the same one.
class SlotOrder {
 public:
  static constexpr uint32_t kMostSlots = 16;

  uint32_t of(uint64_t slot) const { return parts_ >> kBits * slot & kPart; }

  // The part for chunk `number`, of those that the slots of `number` and of the chunks after it have, before `end`: what was in them
  // has been read. `first`: the first one; else that of the slot itself, if it is among them.
  uint32_t take(uint64_t number, uint64_t end, uint32_t slots, bool first) {
    const uint64_t own = number % slots;
    uint64_t best = own;
    for (uint64_t other = number + 1; other < end; ++other)
      if (first ? of(other % slots) < of(best) : of(other % slots) == own) best = other % slots;
    const uint64_t change = uint64_t{of(own) ^ of(best)};
    if (best != own) parts_ ^= change << kBits * own | change << kBits * best;
    return of(own);
  }

 private:
  static constexpr uint32_t kBits = 4, kPart = 15;
  uint64_t parts_ = 0xfedcba9876543210;
};

}  // namespace collc
