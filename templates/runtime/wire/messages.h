// What couriers tell each other: the kinds of messages, as WireHead says them.
#pragma once
#include <cstdint>

#include "control/segment.h"
#include "wire/wire.h"

namespace collc {

enum class WireKind : uint32_t {
  kChunk = 1,      // object: FIFO of the allocation; number, tag; extra 1: in the slot's line; the body is the chunk
  kHead,           // object: FIFO; number: chunks that all its readers have read
  kTransfer,       // object: sender * ranks + receiver; number; tag: signature; the body is the chunk
  kTransferHead,   // the same; number: chunks read
  kCalls,          // object: rank; number: its newest call; tag: its last finished one; the body is CallRecords before it
  kMail,           // object: rank; number; the body is a message
  kLeft,           // object: rank that has left
  kDied,           // object: rank whose process has ended
  kAbort,          // object: rank; extra: code; the body is the text
  kBeat,           // a sign of life
  kGoodbye,        // all ranks of the machine have gone, and nothing follows
};

// A call as it travels.
struct CallTold {
  uint64_t number, history, count, what;
};

// Bodies of all but chunks have no more.
constexpr uint32_t kMostToldCalls = 64;
constexpr uint32_t kMostControlBytes = kMostToldCalls * sizeof(CallTold);
static_assert(kMostControlBytes <= kSmallWireBody, "they share room");

inline WireHead wire_head(WireKind kind, uint32_t object, uint64_t number = 0, uint64_t tag = 0, uint32_t bytes = 0,
                          uint32_t extra = 0) {
  return {static_cast<uint32_t>(kind), object, number, tag, bytes, extra};
}

}  // namespace collc
