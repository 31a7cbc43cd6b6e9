// Finds where a chunk is in its FIFO, on both ends: in the line of its slot, or in the slot.
#pragma once
#include "host/channel.h"
#include "transport/transports.h"

namespace collc {

// Returns true if a chunk of `bytes` travels in the line of its slot. The same at both ends.
inline bool is_in_line(const Fifos &fifos, uint64_t bytes) { return bytes <= fifos.line_bytes(); }

inline ChunkPlace place_of(const Fifos &fifos, FifoEnd &end, const Chunk &chunk) {
  const uint64_t number = end.position + chunk.index;
  return {end, number, fifos.slot_of(number)};
}

// Returns the tag beside the number of a chunk: the signature of its call, and marks.
inline uint64_t &tag_of(const ChunkPlace &at, bool in_line) {
  return in_line ? LineTransport::tag(at) : SlotTransport::tag(at);
}

// Looks once at the number of a chunk. Sequentially consistent, because a rank that falls asleep must not miss a chunk whose
// writer saw it awake (control/segment.h); the acquire part orders the reads of the tag and the data.
inline bool has_arrived(const ChunkPlace &at, bool in_line) {
  if (in_line) return LineTransport::number(at).load(std::memory_order_seq_cst) > at.number;
  if (at.end.seen > at.number) return true;
  at.end.seen = SlotTransport::number(at).load(std::memory_order_seq_cst);
  return at.end.seen > at.number;
}

}  // namespace collc
