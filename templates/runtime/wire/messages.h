// What couriers tell each other: the kinds of messages, as WireHead says them.
#pragma once
#include <cstdint>

#include "control/segment.h"
#include "wire/wire.h"

namespace collc {

enum class WireKind : uint32_t {
  kChunk = 1,      // object: FIFO of the allocation; number, tag; the body is the chunk or a piece of it, as extra says
  kHead,           // object: FIFO; number: chunks that all its readers have read
  kTransfer,       // object: sender * ranks + receiver; number; tag: signature; the body as of a FIFO
  kTransferHead,   // the same; number: chunks read
  kCalls,          // object: rank; number: its newest call; tag: last finished one; extra: 1 if finalized; body: CallRecords
  kMail,           // object: rank; number; the body is a message
  kLeft,           // object: rank that has left
  kDied,           // object: rank whose process has ended
  kAbort,          // object: rank; extra: code; the body is the text
  kBeat,           // a sign of life
  kGoodbye,        // all ranks of the machine have gone, and nothing follows
  // Of rails themselves; object: the rail, but for those of one connection.
  kRailLost,       // number: of its connection; tag: messages that came over it
  kRailOpen,       // number: of its connection, which may be used
  kProbe,          // on a rail: bytes that only take time
  kAlive,          // of one connection; number: messages that came over it; tag: those that came beside rails, on any;
                   // object: bytes in a millisecond that it delivers, 0 if that is not known
  kResume,         // of one connection; number: of the next message beside the rails
};

// The kind of a message that goes over a rail.
constexpr uint32_t kOnRail = 1 << 8;
inline WireKind kind_of(const WireHead &head) { return static_cast<WireKind>(head.kind & (kOnRail - 1)); }
// In `extra` of a chunk: it is in the slot's line.
constexpr uint32_t kInLine = 1;
// In `extra` of a message on a rail: the rail was busy with what went before it, until it came.
constexpr uint32_t kFollows = 2;
// In `extra` of a chunk: these are its last bytes. Above that where they begin, in units.
constexpr uint32_t kLastPiece = 4;
constexpr uint32_t kPieceShift = 3, kPieceUnit = 64;
inline ChunkRange range_of(const WireHead &head) {
  const uint32_t begin = (head.extra >> kPieceShift) * kPieceUnit;
  return {begin, begin + head.bytes};
}
// The head of a piece, from that of the chunk.
inline WireHead piece_head(WireHead chunk, ChunkRange range) {
  chunk.extra &= ~kLastPiece;
  chunk.extra |= (range.begin / kPieceUnit << kPieceShift) | (range.end == chunk.bytes ? kLastPiece : 0);
  chunk.bytes = range.end - range.begin;
  return chunk;
}

// A call as it travels.
struct CallTold {
  uint64_t number, history, count, what;
};

// Bodies of all but chunks have no more.
constexpr uint32_t kMostToldCalls = 64;
constexpr uint32_t kMostControlBytes = kMostToldCalls * sizeof(CallTold);
static_assert(kMostControlBytes <= kSmallWireBody, "they share room");

// Bodies of this size wait for no rail.
constexpr uint32_t kMostBesideRails = kSmallWireBody;

inline WireHead wire_head(WireKind kind, uint32_t object, uint64_t number = 0, uint64_t tag = 0, uint32_t bytes = 0,
                          uint32_t extra = 0) {
  return {static_cast<uint32_t>(kind), object, number, tag, bytes, extra};
}

}  // namespace collc
