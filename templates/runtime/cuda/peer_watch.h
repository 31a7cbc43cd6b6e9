// Publishes the calls of one rank and watches the ranks that they need: ranks that died, left or call something else, partners
// of transfers that left, and the proxy of this machine.
//
// Owner: CudaRank. Threads: the thread that makes a call notes it, the watcher looks. No call blocks.
#pragma once
#include <cstdint>
#include <mutex>
#include <set>

#include "executor/backend.h"

namespace collc::cuda {

class PeerWatch {
 public:
  explicit PeerWatch(const RankContext &context) : context_(context), log_(context.segment->log(context.rank)) {}

  // Publishes what the rank calls, for the others to compare.
  void note(const Call &call) {
    if (call.number != 0 && !call.is_continuation)
      context_.segment->note_call(context_.rank, log_, call.number, call.signature, call.count, call.packed_call);
  }
  // Notes a transfer with a rank, which must not leave before it has ended.
  void note_transfer(uint32_t peer);
  // Called by the watcher every 100 ms. Returns why the communicator must end, or success. `runs`: a call of the rank has not
  // ended.
  Status look(bool runs);

 private:
  Status look_at_peers() const;
  Status look_at_transfers(bool runs);
  Status look_at_proxy(bool runs);

  const RankContext &context_;
  CallLog log_;
  std::mutex transfers_mutex_;  // guards transfers_
  std::set<uint32_t> transfers_;  // other ends of the transfers that may not have ended
  uint32_t looks_without_peer_ = 0;  // in a row: a partner of a transfer has left, and a call runs
  uint32_t looks_without_proxy_ = 0;  // in a row: the process with the proxy has ended, and a call runs
};

}  // namespace collc::cuda
