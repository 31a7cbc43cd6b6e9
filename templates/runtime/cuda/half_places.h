// Halves of FIFOs that couriers join, in the target's part of the segment.
#pragma once
#include <cstddef>

#include "cuda/driver.h"
#include "cuda/elsewhere.h"
#include "transport/fifo.h"

namespace collc::cuda {

// The addresses of one, `at` being that of offset 0.
inline HalfPlaces half_places(const FifoPlace &place, uint32_t reader, Address at) {
  // A courier tells all readers of the writer's half alike; a reader has a counter of its own.
  const uint64_t head = place.heads + reader * sizeof(HeadLine) + offsetof(HeadLine, count);
  return {at + place.slots, at + place.tail, at + head,
          at + place.lines + offsetof(SlotLine, chunk) + offsetof(ChunkAddress, bytes)};
}

}  // namespace collc::cuda
