// The sends and receives of one rank on the host target, and the records of them that other ranks and `collc status` read.
//
// Owner: HostRank. Threads: the one that makes calls. No call blocks.
#pragma once
#include <cstdint>

#include "executor/backend.h"
#include "host/channel.h"
#include "transport/transfers.h"

namespace collc {

class TransferCalls {
 public:
  TransferCalls(const RankContext &context, const TransferLayout &layout, const CallLog &calls)
      : calls_(calls),
        sends_(context.segment->board().transfers(context.rank)),
        queues_(*context.segment, layout, context.rank) {
    if (read_path("COLLC_DUMP") != nullptr) sends_.time_ends();
  }

  // Adds a transfer; `status` is set if it fails. A transfer with a number is part of a collective, which `calls` records.
  void post(const Call &call, Status *status) {
    if (call.number == 0)
      sends_.note(++posted_, 0, call.count, call.packed_call);
    else if (!call.is_continuation)
      open_collective_ = call.number;
    queues_.post(call, status);
  }
  // Records that all transfers so far have ended.
  void end();
  // Returns true if transfers were posted since the last end().
  bool has_open() const { return open_collective_ != 0 || ended_ != posted_; }
  // The number of the collective made of transfers that runs; 0: none.
  uint64_t open_collective() const { return open_collective_; }

  Transfers &queues() { return queues_; }
  const Transfers &queues() const { return queues_; }

 private:
  CallLog calls_;  // of collectives
  CallLog sends_;  // of ncclSend and ncclRecv
  uint64_t open_collective_ = 0;
  uint64_t posted_ = 0, ended_ = 0;  // ncclSend and ncclRecv
  Transfers queues_;
};

inline void TransferCalls::end() {
  if (open_collective_ != 0) calls_.end(open_collective_);
  open_collective_ = 0;
  while (ended_ != posted_) {
    ++ended_;
    if (ended_ + Board::kTransfers > posted_) sends_.end(ended_);
  }
}

}  // namespace collc
