// How one chunk of a FIFO gets from its writer to its readers: five transports of one shape.
//
//   number(at)     the counter that says that the chunk is there, for both ends
//   tag(at)        the signature of the writer's call; kMarks in place of its last bits
//   write(at, ...) where the writer puts the bytes; null if they stay where they stand
//   read(at, ...)  where the reader finds them
//
// Both ends choose alike: Line by the size of the chunk; readers on another machine get a copy of line or slot, for which the
// writer says the bytes; else the tag says whether there is an address, and the reach of the
// reader whether it follows the address itself or has the kernel copy. Nothing here is virtual: a chunk of a small call takes
// as long as a few loads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "transport/fifo.h"

namespace collc {

// Of a tag, in place of a bit of the call's signature: the slot's line holds an address.
constexpr uint64_t kByAddress = 1;
// The same: what stands in the slot went there past the caches.
constexpr uint64_t kPast = 2;
// The same: for its writer the cores of the ranks are far apart, in this call.
constexpr uint64_t kFar = 4;
// The same: the chunk stands in a part of the slots that is not the slot's own; the line says in which.
constexpr uint64_t kMoved = 8;
// The same: the chunk is a rank's input to an average as it stands, which its reader multiplies by the factor.
constexpr uint64_t kUnscaled = 16;
constexpr uint64_t kMarks = kByAddress | kPast | kFar | kMoved | kUnscaled;
// Of smaller chunks a cache keeps those of all slots.
constexpr uint64_t kLeastMoved = 4 << 10;

// One chunk in a FIFO.
struct ChunkPlace {
  FifoEnd &end;
  uint64_t number;  // chunks before it
  uint64_t slot;

  SlotLine &line() const { return end.lines[slot]; }
};

// In the slot's line, with number and tag: a reader misses its cache once.
struct LineTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return at.line().number; }
  static uint64_t &tag(const ChunkPlace &at) { return at.line().tag; }
  static void *write(const ChunkPlace &at) { return at.line().data; }
  static const void *read(const ChunkPlace &at) { return at.line().data; }
};

// In the slot.
struct SlotTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return *at.end.tail; }
  static uint64_t &tag(const ChunkPlace &at) { return at.end.tags[at.slot]; }
  static void *write(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    return at.end.slots + fifos.offset_of(at.number, at.slot, bytes);
  }
  // The same; may set kMoved among the `marks` of its tag.
  static void *write(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes, uint8_t *marks) {
    FifoEnd &end = at.end;
    const bool first = bytes >= kLeastMoved;
    if (!fifos.moves() || (!first && end.order.of(at.slot) == at.slot)) return write(at, fifos, bytes);
    uint32_t slowest = 0;
    end.seen = std::max(end.seen, end.least_head(&slowest));
    const uint64_t part = end.order.take(at.number, end.seen + fifos.slots(), fifos.slots(), first);
    if (part == at.slot) return write(at, fifos, bytes);
    at.line().chunk.address = part;
    *marks |= kMoved;
    return end.slots + part * fifos.slot_room();
  }
  static const void *read(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    if ((tag(at) & kMoved) != 0) return at.end.slots + at.line().chunk.address * fifos.slot_room();
    return write(at, fifos, bytes);
  }
  // Once the chunk is there: the lines of the next one, of as many bytes, come while the writer waits.
  static void ask_ahead(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    if (!fifos.asks_ahead(bytes)) return;
    const uint64_t next = at.number + 1;
    const char *const begin = at.end.slots + fifos.offset_of(next, fifos.slot_of(next), bytes);
    for (uint64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(begin + line, 1);
  }
};

// In the slot, for readers on another machine: the courier (wire/courier.h) copies it into the slot of theirs.
struct WireTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return SlotTransport::number(at); }
  static uint64_t &tag(const ChunkPlace &at) { return SlotTransport::tag(at); }
  static void *write(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    at.line().chunk.bytes = bytes;
    return SlotTransport::write(at, fifos, bytes);
  }
  static const void *read(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    return SlotTransport::read(at, fifos, bytes);
  }
};

// Where it stands, for readers in the writer's process. The writer's call ends after its readers have read.
struct AddressTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return SlotTransport::number(at); }
  static uint64_t &tag(const ChunkPlace &at) { return SlotTransport::tag(at); }
  static void *write(const ChunkPlace &at, const void *from, uint64_t bytes) {
    at.line().chunk = {reinterpret_cast<uint64_t>(from), bytes};
    return nullptr;
  }
  static const void *read(const ChunkPlace &at) { return reinterpret_cast<const void *>(at.line().chunk.address); }
};

// The same for readers in other processes: the kernel copies the chunk to where the reader wants it.
struct KernelCopyTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return SlotTransport::number(at); }
  static uint64_t &tag(const ChunkPlace &at) { return SlotTransport::tag(at); }
  static void *write(const ChunkPlace &at, const void *from, uint64_t bytes) {
    return AddressTransport::write(at, from, bytes);
  }
  // Copies to `to`. Chunks that follow it in memory too, up to number `limit`, and are there already, come with the same
  // call: the reader has room for them behind `to`. `peer`: the writer's NCCL rank.
  static Status read(const ChunkPlace &at, const Fifos &fifos, const Neighbours &neighbours, uint32_t peer, uint64_t limit,
                     void *to);
  // Copies the chunk alone into the reader's scratch, unless it stands there.
  static Status fetch(const ChunkPlace &at, const Neighbours &neighbours, uint32_t peer);
};

}  // namespace collc
