// The recent calls of each rank of a communicator, in shared memory. With them ranks detect that their calls differ, whatever
// the difference is, whichever rank made the wrong call, and even after some ranks have returned.
//
// Each collective call of a rank has a number, counted from 1, and a history: a hash of this call and all calls before it.
// Ranks that have made the same calls have equal histories at equal numbers; histories that differ once differ forever. A
// rank records its last calls in a log that all others can read. Chunks carry the history too, so a rank never uses data of
// another call. A rank that waits for long compares logs, starting with the last common number. ncclSend and ncclRecv have no
// number, because not all ranks call them: a message carries its type and count, and control/deadlock.h finds ranks that wait
// for each other.
//
// Only the rank itself writes its log; any thread may read it. No function blocks.
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

// Packs a call's collective, type, operation and root into one word. For an average or a sum with a factor, `operation` has
// one of these bits.
constexpr uint64_t kAverage = 16, kScaled = 32;
constexpr uint64_t pack_call(Collective collective, ncclDataType_t type, uint64_t operation, int root) {
  return static_cast<uint64_t>(collective) | static_cast<uint64_t>(type) << 8 | operation << 16 |
         static_cast<uint64_t>(root + 1) << 32;
}
// Returns text such as "reduce of 8 elements of float32 (sum), root 1".
std::string describe_call(uint64_t what, uint64_t count);

// Packs one end of ncclSend or ncclRecv in the same way; `peer` is the other end.
constexpr uint64_t pack_transfer(bool receives, ncclDataType_t type, int peer) {
  return pack_call(Collective::kSendRecv, type, receives ? 1 : 0, peer);
}

// The signature of data: for ncclSend an odd number with type and count, for a collective its history, made even.
constexpr uint64_t kMostTold = (uint64_t{1} << 55) - 1;
constexpr uint64_t sign_transfer(ncclDataType_t type, uint64_t count) {
  return (count < kMostTold ? count : kMostTold) << 9 | static_cast<uint64_t>(type) << 1 | 1;
}
constexpr uint64_t sign_exchange(uint64_t history) { return history & ~uint64_t{1}; }
constexpr bool is_transfer(uint64_t signature) { return (signature & 1) != 0; }
constexpr ncclDataType_t type_told(uint64_t signature) { return static_cast<ncclDataType_t>(signature >> 1 & 0xff); }
constexpr uint64_t count_told(uint64_t signature) { return signature >> 9; }
// Returns text for data that is sent or expected: "8 elements of float32", or "a part of a collective".
std::string describe_signature(uint64_t signature);

// One call. `collc status` reads this struct from outside (control/board.h).
struct alignas(kLine) CallRecord {
  std::atomic<uint64_t> number;  // 0 while the other members change
  std::atomic<uint64_t> history;
  std::atomic<uint64_t> count;
  std::atomic<uint64_t> what;   // packed by pack_call()
  std::atomic<uint64_t> begun;  // in now_ticks()
  // 0: the call has not ended; kEnded: it has. If records of calls were requested (time_ends), the time of its end in ticks
  // instead of kEnded, because reading the counter is the main cost.
  std::atomic<uint64_t> ended;
  static constexpr uint64_t kEnded = 1;
};

// The last calls of one rank; only this rank writes.
class CallLog {
 public:
  CallLog() = default;
  // `depth`: the number of records, a power of two. They are initially zero.
  CallLog(CallRecord *records, uint32_t depth) : records_(records), mask_(depth - 1) {}

  // Stores are released in this order, and readers acquire in the opposite order. So a reader that sees any member of the new
  // call also sees that the old number is gone.
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
  // Records that the rank has returned from a call that it noted, or is about to return.
  void end(uint64_t number) {
    records_[number & mask_].ended.store(times_ends_ ? now_ticks() : CallRecord::kEnded, std::memory_order_release);
  }
  // Makes end() record the time, too, from now on.
  void time_ends() { times_ends_ = true; }

  struct Noted {
    uint64_t history, count, what, begun, ended;
  };
  // Returns false if the call is not in the log yet, or no longer.
  bool find(uint64_t number, Noted *noted) const;
  // Returns whether the record of this call has been overwritten by a later call.
  bool forgot(uint64_t number) const;
  uint32_t depth() const { return mask_ + 1; }
  // Returns the number of the last call in the log; 0: none.
  uint64_t newest() const;

 private:
  CallRecord *records_ = nullptr;
  uint32_t mask_ = 0;
  bool times_ends_ = false;
};

// A rank, its log, and the number of its newest call.
struct Caller {
  uint32_t rank;
  const CallLog &log;
  uint64_t newest;
};
// Fails with ncclInvalidUsage and names the first two calls that differ, as far as both logs go back.
Status compare_calls(const Caller &one, const Caller &other);

}  // namespace collc
