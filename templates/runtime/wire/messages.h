// The messages between proxy threads: types and encoding in WireHead.
#pragma once
#include <cstdint>

#include "control/segment.h"
#include "wire/wire.h"

namespace collc {

enum class WireKind : uint32_t {
  kChunk = 1,  // object: queue (FIFO of the allocation); number and tag of the chunk; extra: which piece; body: the piece
  kHead,  // object: queue; number: chunks that all its readers have read
  kTransfer,  // object: sender * ranks + receiver; number; tag: signature; extra and body: as of kChunk
  kTransferHead,  // object: the same; number: chunks read
  kCalls,  // object: rank; number: its newest call; tag: its last finished call; extra: 1 if finalized; body: SentCall records
  kMail,  // object: rank; number: of the mail; body: the mail
  kLeft,  // object: a rank that has left
  kDied,  // object: a rank whose process has ended
  kAbort,  // object: the rank that aborts; extra: code; body: text
  kBeat,  // a sign of life
  kGoodbye,  // all ranks of the machine have gone; the last message
  // Messages about rails. `object` is the rail, except in the messages about one connection.
  kRailLost,  // number: generation of its connection; tag: messages that came over this connection
  kRailOpen,  // number: generation of its connection, which may be used now
  kProbe,  // on a rail: bytes without meaning, to measure the time that they take
  // About this connection. number: messages that came over it; tag: control messages that came over any connection; object:
  // bytes that it delivers per millisecond, 0 if unknown.
  kAlive,
  kResume,  // about this connection. number: of the next control message
};

// Flag in `kind` of a message that is sent on a rail.
constexpr uint32_t kOnRail = 1 << 8;
inline WireKind kind_of(const WireHead &head) { return static_cast<WireKind>(head.kind & (kOnRail - 1)); }
// Flag in `extra` of a chunk: it is in the slot's line.
constexpr uint32_t kInLine = 1;
// Flag in `extra` of a message on a rail: the rail is busy with earlier messages until this one reaches it.
constexpr uint32_t kFollows = 2;
// Flag in `extra` of a chunk: the body has its last bytes. The bits above have the offset of the body in the chunk, in
// kPieceUnit bytes.
constexpr uint32_t kLastPiece = 4;
constexpr uint32_t kPieceShift = 3, kPieceUnit = 64;
inline ChunkRange range_of(const WireHead &head) {
  const uint32_t begin = (head.extra >> kPieceShift) * kPieceUnit;
  return {begin, begin + head.bytes};
}
// Returns the head of a piece of a chunk; `chunk` is the head of the whole chunk.
inline WireHead piece_head(WireHead chunk, ChunkRange range) {
  chunk.extra &= ~kLastPiece;
  chunk.extra |= (range.begin / kPieceUnit << kPieceShift) | (range.end == chunk.bytes ? kLastPiece : 0);
  chunk.bytes = range.end - range.begin;
  return chunk;
}

// A call, as it is sent.
struct SentCall {
  uint64_t number, history, count, what;
};

// Limits of the body of all messages but chunks.
constexpr uint32_t kMaxSentCalls = 64;
constexpr uint32_t kMaxControlBytes = kMaxSentCalls * sizeof(SentCall);
static_assert(kMaxControlBytes <= kSmallWireBody, "they share room");

// Bodies of up to this size are sent as control messages, not on rails.
constexpr uint32_t kMaxControlBody = kSmallWireBody;

inline WireHead wire_head(WireKind kind, uint32_t object, uint64_t number = 0, uint64_t tag = 0, uint32_t bytes = 0,
                          uint32_t extra = 0) {
  return {static_cast<uint32_t>(kind), object, number, tag, bytes, extra};
}

}  // namespace collc
