// The recent calls of each rank of a communicator, in shared memory. Ranks must detect that their calls differ, whatever the
// difference is and whichever rank made the odd call, even after some ranks have returned.
//
// Every collective call of a rank has a number, from 1, and a history: a hash of this call and all before it. Ranks that have
// made the same calls have the same history at the same number; histories that differ once differ forever. A rank records its
// last calls in a log that all others can read. Chunks carry the history too, so a rank never takes data of another call; a
// rank that waits for long compares logs, the last common number first. ncclSend and ncclRecv have no number, because not all
// ranks call them: a message names its own type and count, and control/deadlock.h finds ranks that wait for each other.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/lines.h"
#include "collc/tables.h"
#include "plan/call.h"
#include "nccl.h"
#include "base/status.h"

namespace collc {

// A call's collective, type, operation and root in one word.
constexpr uint64_t kAverage = 16, kScaled = 32;  // beside the number of a reduction
constexpr uint64_t pack_call(Collective collective, ncclDataType_t type, uint64_t operation, int root) {
  return static_cast<uint64_t>(collective) | static_cast<uint64_t>(type) << 8 | operation << 16 |
         static_cast<uint64_t>(root + 1) << 32;
}
// Readable text: "reduce of 8 elements of float32 (sum), root 1".
std::string describe_call(uint64_t what, uint64_t count);

// One end of ncclSend or ncclRecv, told alike; `peer` is the other end.
constexpr uint64_t pack_transfer(bool receives, ncclDataType_t type, int peer) {
  return pack_call(Collective::kSendRecv, type, receives ? 1 : 0, peer);
}

// What is sent by ncclSend says its type and count, in an odd number; what a collective sends has its history, in an even one.
constexpr uint64_t kMostTold = (uint64_t{1} << 55) - 1;
constexpr uint64_t sign_transfer(ncclDataType_t type, uint64_t count) {
  return (count < kMostTold ? count : kMostTold) << 9 | static_cast<uint64_t>(type) << 1 | 1;
}
constexpr uint64_t sign_exchange(uint64_t history) { return history & ~uint64_t{1}; }
constexpr bool is_transfer(uint64_t signature) { return (signature & 1) != 0; }
constexpr ncclDataType_t type_told(uint64_t signature) { return static_cast<ncclDataType_t>(signature >> 1 & 0xff); }
constexpr uint64_t count_told(uint64_t signature) { return signature >> 9; }
// Readable text of what is sent or expected: "8 elements of float32", or "a part of a collective".
std::string describe_signature(uint64_t signature);

// `collc status` reads it from outside: its fields are part of the board (control/board.h).
struct alignas(kLine) CallRecord {
  std::atomic<uint64_t> number;  // 0 while the rest is written
  std::atomic<uint64_t> history;
  std::atomic<uint64_t> count;
  std::atomic<uint64_t> what;   // packed
  std::atomic<uint64_t> begun;  // now_ticks()
  // 0: it has not ended; kEnded: it has; else when, in ticks, which is noted only where records of calls are asked for, since
  // reading the counter is what a note costs.
  std::atomic<uint64_t> ended;
  static constexpr uint64_t kEnded = 1;
};

// The last calls of one rank; only that rank writes.
class CallLog {
 public:
  CallLog() = default;
  // `depth` records, a power of two, zero at first.
  CallLog(CallRecord *records, uint32_t depth) : records_(records), mask_(depth - 1) {}

  // Others read in the other order: a reader that sees any part of a new call also sees that the old number is gone.
  void note(uint64_t number, uint64_t history, uint64_t count, uint64_t what) {
    CallRecord &record = records_[number & mask_];
    record.number.store(0, std::memory_order_relaxed);
    record.count.store(count, std::memory_order_release);
    record.what.store(what, std::memory_order_release);
    record.history.store(history, std::memory_order_release);
    record.begun.store(now_ticks(), std::memory_order_release);
    record.ended.store(0, std::memory_order_release);
    record.number.store(number, std::memory_order_release);
  }
  // The rank has returned from a call that it noted, or is about to.
  void end(uint64_t number) {
    records_[number & mask_].ended.store(times_ends_ ? now_ticks() : CallRecord::kEnded, std::memory_order_release);
  }
  // From now on end() also notes when that is.
  void time_ends() { times_ends_ = true; }

  struct Noted {
    uint64_t history, count, what, begun, ended;
  };
  // False if the call is not logged yet, or no longer.
  bool find(uint64_t number, Noted *noted) const;
  // True if the log has gone past it.
  bool forgot(uint64_t number) const;
  uint32_t depth() const { return mask_ + 1; }
  // The number of the last call in it; 0: none.
  uint64_t newest() const;

 private:
  CallRecord *records_ = nullptr;
  uint32_t mask_ = 0;
  bool times_ends_ = false;
};

// One rank, its log, and its newest call.
struct Caller {
  uint32_t rank;
  const CallLog &log;
  uint64_t newest;
};
// ncclInvalidUsage with the first two calls that differ, as far as both logs tell.
Status compare_calls(const Caller &one, const Caller &other);

}  // namespace collc
