// How one chunk of a FIFO gets from its writer to its readers: five transports with the same functions:
//   number(at)     returns the counter that says that the chunk has arrived, for both ends
//   tag(at)        returns the tag: the signature of the writer's call, with kMarks in place of its last bits
//   write(at, ...) returns where the writer stores the bytes; null if they stay where they are
//   read(at, ...)  returns where the reader finds the bytes
//
// Both ends choose the same transport. A chunk that fits in a line uses LineTransport. For readers on another machine the
// chunk is in the slot, and the proxy thread copies line or slot to their machine; the writer stores the number of bytes for
// it. Otherwise the tag says whether the chunk comes by address; the reader then follows the address itself or has the kernel
// copy, depending on its Reach.
//
// No function is virtual, because a chunk of a small call takes only as long as a few loads. Memory order: fifo.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "transport/fifo.h"

namespace collc {

// The marks replace the last bits of the call's signature in a tag. This one: the slot's line contains the address of the
// chunk.
constexpr uint64_t kByAddress = 1;
// The chunk was stored into the slot past the caches.
constexpr uint64_t kPast = 2;
// The writer considers the cores of the ranks far apart, in this call.
constexpr uint64_t kFar = 4;
// The chunk is not in the slot's own place but in the place whose number is in the slot's line.
constexpr uint64_t kMoved = 8;
// The chunk is the unscaled input of a rank to an average; the reader multiplies it by the factor.
constexpr uint64_t kUnscaled = 16;
constexpr uint64_t kMarks = kByAddress | kPast | kFar | kMoved | kUnscaled;
// In bytes. A cache holds smaller chunks of all slots, so these stay in the slots' own places.
constexpr uint64_t kLeastMoved = 4 << 10;

// One chunk in a FIFO.
struct ChunkPlace {
  FifoEnd &end;
  uint64_t number;  // number of chunks before it in the FIFO
  uint64_t slot;

  SlotLine &line() const { return end.lines[slot]; }
};

// The chunk is in the slot's line, with number and tag, so a reader has one cache miss.
struct LineTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return at.line().number; }
  static uint64_t &tag(const ChunkPlace &at) { return at.line().tag; }
  static void *write(const ChunkPlace &at) { return at.line().data; }
  static const void *read(const ChunkPlace &at) { return at.line().data; }
};

// The chunk is in the slot.
struct SlotTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return *at.end.tail; }
  static uint64_t &tag(const ChunkPlace &at) { return at.end.tags[at.slot]; }
  static void *write(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    return at.end.slots + fifos.offset_of(at.number, at.slot, bytes);
  }
  // As above; may set kMoved in `marks`, the marks for the chunk's tag.
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
  // Prefetches the lines of the next chunk, assuming the same size. Call it after the chunk has been published; the lines
  // then arrive while the writer waits.
  static void ask_ahead(const ChunkPlace &at, const Fifos &fifos, uint64_t bytes) {
    if (!fifos.asks_ahead(bytes)) return;
    const uint64_t next = at.number + 1;
    const char *const begin = at.end.slots + fifos.offset_of(next, fifos.slot_of(next), bytes);
    for (uint64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(begin + line, 1);
  }
};

// The chunk is in the slot, for readers on another machine: the proxy thread (wire/proxy.h) copies it into the slot on
// their machine.
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

// The chunk stays where it is, for readers in the writer's process. The writer's call ends only after its readers have read
// it.
struct AddressTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return SlotTransport::number(at); }
  static uint64_t &tag(const ChunkPlace &at) { return SlotTransport::tag(at); }
  static void *write(const ChunkPlace &at, const void *from, uint64_t bytes) {
    at.line().chunk = {reinterpret_cast<uint64_t>(from), bytes};
    return nullptr;
  }
  static const void *read(const ChunkPlace &at) { return reinterpret_cast<const void *>(at.line().chunk.address); }
};

// The chunk stays where it is, for readers in other processes: the kernel copies it to where the reader wants it.
struct KernelCopyTransport {
  static std::atomic<uint64_t> &number(const ChunkPlace &at) { return SlotTransport::number(at); }
  static uint64_t &tag(const ChunkPlace &at) { return SlotTransport::tag(at); }
  static void *write(const ChunkPlace &at, const void *from, uint64_t bytes) {
    return AddressTransport::write(at, from, bytes);
  }
  // Copies the chunk to `to`. Following chunks, up to number `limit` - 1, are copied by the same system call if they have
  // already arrived by address and also follow in the writer's memory; the reader must have room for them behind `to`. `peer`
  // is the writer's NCCL rank.
  static Status read(const ChunkPlace &at, const Fifos &fifos, const Neighbors &neighbors, uint32_t peer, uint64_t limit,
                     void *to);
  // Copies only this chunk into the reader's scratch memory, unless it is already there.
  static Status fetch(const ChunkPlace &at, const Neighbors &neighbors, uint32_t peer);
};

}  // namespace collc
