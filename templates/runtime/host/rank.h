// One rank on the host target. Its parts own the state; this class begins a call, hands it to FIFOs or to a single copy, and
// ends it.
//
// Owner: Communicator. Threads: one at a time (communicator.h: Owner), with the Service of backend.cpp, which advances the
// ranks of a thread and waits. connect() is collective: it blocks until the other ranks call it. No other call waits for
// another rank, except that a failing rank waits until others have left its buffers.
#pragma once
#include <memory>
#include <vector>

#include "control/deadlock.h"
#include "executor/backend.h"
#include "host/breakdown.h"
#include "host/call_cut.h"
#include "host/call_paths.h"
#include "host/channel.h"
#include "host/fifo_call.h"
#include "host/link_bench.h"
#include "host/path_shares.h"
#include "host/single_copy_call.h"
#include "host/spread.h"
#include "host/transfer_calls.h"

namespace collc {

// The layout of the whole target's memory: FIFOs of the programs, then the queues of transfers.
TransferLayout host_layout(const Tables &tables, const Placement &placement);

class HostRank final : public RankBackend {
 public:
  explicit HostRank(const RankContext &context);
  // Collective, while the communicator is made: finds how the ranks reach each other's memory.
  Status connect(const RankContext &context);

  // A call that moves nothing: it has ended as soon as the others can know of it.
  void note_nothing(const Call &call) {
    note(call);
    log_.end(call.number);
  }
  // Makes `call` the current collective; it must stay until that is done.
  void begin(const Call &call);
  // Adds a transfer to those that run with it; `status` is set if it fails.
  void post(const Call &call, Status *status);
  // Advances every channel and transfer as far as it goes; returns true if any moved.
  bool advance();
  // Returns true if no collective runs.
  bool done() const { return fifo_call_.is_done() && !single_copy_.is_running(); }
  bool idle() const { return done() && transfers_.queues().idle(); }
  // The error that broke the communicator; after it nothing runs.
  const Status &failure() const { return failure_; }
  // Looks for reasons never to be served: an abort, a dead peer, a peer that calls something else, the time limit. `waited_us`:
  // since this rank last moved.
  void diagnose(int64_t waited_us);
  // Marks the ranks that this rank waits for, by NCCL rank, and returns the call that it is in.
  InCall find_waits(std::vector<bool> *ranks) const;
  // Returns true if a rank that this one waits for was last seen on the core of this thread.
  bool shares_core() const;

  const RankContext &context() const { return context_; }
  HostPathShares &shares() { return shares_; }
  TransferCalls &transfers() { return transfers_; }
  Spread &spread() { return spread_; }
  // Returns true if chunks wait for a clock, which rings no bell.
  bool is_throttled() const { return shared_.throttle.is_set(); }
  bool cores_are_free() const { return shared_.cores_are_free; }

  std::vector<ChannelTimes> times() const override { return breakdown_.times(); }
  uint32_t protocol_of(const Program &program, uint64_t) const override { return program.protocol; }
  bool can_run(const Program &, const Call *) const override { return true; }
  uint64_t gpu_bytes() const override { return 0; }
  Status make_link_bench(uint64_t bytes, std::unique_ptr<LinkBench> *made) override {
    *made = std::make_unique<HostBench>(bytes, shared_.neighbors, &max_wait_seconds_);
    return {};
  }
  PathClasses *path_classes() override { return &shares_; }
  const ProgramChooser *chooser() const override { return &chooser_; }

 private:
  void note(const Call &call) {
    context_.segment->note_call(context_.rank, log_, call.number, call.signature, call.count, call.packed_call);
  }
  void set_running(const Call &call);
  void take(const Program &program);
  void begin_fifos();
  bool advance_single_copy();
  void finish_call();
  void fail_all(const Status &status);
  void wait_for_writer(uint32_t peer, int64_t start_us);
  Status find_gone_peer() const;
  Status find_cut() const;
  std::string describe_wait() const;

  RankContext context_;
  ChannelContext shared_;
  Breakdown breakdown_;
  HostPathShares shares_;
  PathChooser chooser_;
  CallCutter cutter_;
  FifoCall fifo_call_;
  SingleCopyCall single_copy_;
  CallLog log_;
  TransferCalls transfers_;
  Spread spread_;
  const CallCut *cut_ = nullptr;  // of the current call
  double max_wait_seconds_ = 0;  // during a check of links; 0: no limit
  Status failure_;
};

}  // namespace collc
