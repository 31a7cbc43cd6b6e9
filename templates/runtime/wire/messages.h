// What couriers tell each other: the kinds of messages, as WireHead says them.
#pragma once
#include <cstdint>

#include "control/segment.h"
#include "wire/wire.h"

namespace collc {

enum class WireKind : uint32_t {
  kChunk = 1,      // object: FIFO of the allocation; number, tag; extra 1: in the slot's line; the body is the chunk
  kHead,           // object: FIFO; number: chunks that all its readers have read; extra: grants of chunks to rails, in tag
  kTransfer,       // object: sender * ranks + receiver; number; tag: signature; the body is the chunk
  kTransferHead,   // the same; number: chunks read; grants as for a FIFO
  kCalls,          // object: rank; number: its newest call; tag: its last finished one; the body is CallRecords before it
  kMail,           // object: rank; number; the body is a message
  kLeft,           // object: rank that has left
  kDied,           // object: rank whose process has ended
  kAbort,          // object: rank; extra: code; the body is the text
  kBeat,           // a sign of life
  kGoodbye,        // all ranks of the machine have gone, and nothing follows
  kGrant,          // object: FIFO; number: a chunk that did not come; extra: its rail from now on
  kTransferGrant,  // the same of a transfer
  // Of rails themselves; object: the rail, but for those of one connection.
  kRailLost,       // number: of its connection; tag: messages that came over it
  kRailOpen,       // number: of its connection, which may be used
  kProbeWanted,    // a probe on it
  kProbe,          // on a rail: bytes that only take time
  kAlive,          // of one connection; number: messages that came over it; tag: those that came beside rails, on any
  kResume,         // of one connection; number: of the next message beside the rails
};

// The kind of a message that goes over a rail; of one that has come, with which one.
constexpr uint32_t kOnRail = 1 << 8;
inline WireKind kind_of(const WireHead &head) { return static_cast<WireKind>(head.kind & (kOnRail - 1)); }
inline uint32_t rail_of(const WireHead &head) { return (head.kind & kOnRail) != 0 ? head.kind >> 16 : kNoRail; }
// In `extra` of a message on a rail: it was ready before the one before it had arrived.
constexpr uint32_t kFollows = 2;

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
