// Assigns the places of a FIFO's data to its slots. If ranks share cores, all of them have run before a slot is used again,
// and by then a cache has lost most of the slot's lines. So a writer takes the first free place instead of the slot's own
// one; readers that keep up then use no more memory than fits in a cache. If each rank has its own core, the opposite is
// better (fifo.h).
#pragma once
#include <cstdint>

namespace collc {

// The assignment, kept by the writer. Slots exchange places, so no two slots ever have the same place.
class SlotOrder {
 public:
  static constexpr uint32_t kMostSlots = 16;

  // Returns the place of a slot.
  uint32_t of(uint64_t slot) const { return parts_ >> kBits * slot & kPart; }

  // Gives the slot of chunk `number` a free place and returns the place. Free are the places of the slots of the chunks from
  // `number` to `end` - 1, because their contents have been read. If `first`, takes the lowest of them; otherwise the slot's
  // own place, if it is free.
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
