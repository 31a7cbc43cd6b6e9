// The calls of one rank so far: the number of each, and a hash of all calls up to it, which every chunk carries.
//
// Owner: Communicator. Threads: the one that owns the communicator (Owner). No call blocks.
#pragma once
#include <cstdint>

#include "control/call_log.h"
#include "plan/call.h"

namespace collc {

class CallNumbers {
 public:
  // Counts a call that begins: sets its number and its signature.
  void count(Call *call) {
    if (call->collective == Collective::kSendRecv) {
      const bool receives = call->work == Work::kReceive;
      call->number = 0;
      call->packed_call = pack_transfer(receives, call->type, static_cast<int>(call->peer));
      call->signature = sign_transfer(call->type, call->count);
      return;
    }
    const uint64_t operation =
        static_cast<uint64_t>(call->op.kind) + (call->op.is_average ? kAverage : 0) + (call->op.has_scale ? kScaled : 0);
    call->packed_call = pack_call(call->collective, call->type, operation, call->root);
    if (!call->is_continuation) {
      ++calls_;
      hash_ = mix(mix(hash_ ^ mix(call->count)) ^ call->packed_call);
    }
    call->number = calls_;
    call->signature = call->work == Work::kProgram ? hash_ : sign_exchange(hash_);
  }

 private:
  // Spreads a number over all bits; no two numbers become the same.
  static uint64_t mix(uint64_t number) {
    number ^= number >> 32;
    number *= 0x9e3779b97f4a7c15;
    return number ^ number >> 29;
  }

  uint64_t calls_ = 0;
  uint64_t hash_ = 0;  // of all calls so far
};

}  // namespace collc
