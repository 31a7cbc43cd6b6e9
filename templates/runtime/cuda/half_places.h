// Halves of FIFOs that proxies join, in the target's part of the segment.
#pragma once
#include <cstddef>

#include "cuda/driver.h"
#include "cuda/elsewhere.h"
#include "transport/fifo.h"

namespace collc::cuda {

// Returns the addresses of one half; `at`: the address of offset 0.
inline HalfPlaces half_places(const FifoPlace &place, uint32_t reader, Address at) {
  // A proxy reads the writer's half for all readers; each reader has a separate counter.
  const uint64_t head = place.heads + reader * sizeof(HeadLine) + offsetof(HeadLine, count);
  return {at + place.slots, at + place.tail, at + head,
          at + place.lines + offsetof(SlotLine, chunk) + offsetof(ChunkAddress, bytes)};
}

}  // namespace collc::cuda
