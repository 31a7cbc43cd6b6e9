// Runs the current call over FIFOs: advances each channel of its program as far as it goes.
//
// Owner: HostRank. Threads: the one that makes calls. No call blocks: a step that would have to wait returns, and the caller
// advances the channels again.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host/breakdown.h"
#include "host/call_cut.h"
#include "host/channel.h"
#include "host/path_shares.h"

namespace collc {

class FifoCall {
 public:
  FifoCall(const RankContext &context, ChannelContext &shared, HostPathShares &shares, Breakdown &breakdown)
      : context_(context), shared_(shared), shares_(shares), breakdown_(breakdown) {}
  // The most channels that run side by side; 0: all.
  void limit_channels(uint32_t most) { channel_limit_ = most; }

  // Begins the running call. `cut` must stay until the call has ended. The call may have no channel to run.
  void begin(const CallCut &cut);
  // Returns true if no call runs.
  bool is_done() const { return remaining_ == 0; }
  // Advances the channels; returns true if any moved. If the call must end, is_broken() is true afterwards.
  bool advance();
  bool is_broken() const { return is_broken_; }
  // Ends the call without running it.
  void stop();

  // For errors and for waits: the ranks that the call waits for, by NCCL rank, and a sentence about the first channel that
  // waits.
  void add_waits(std::vector<bool> *ranks) const;
  bool waits_on_core(uint32_t core) const;
  std::string describe_wait() const;

 private:
  bool advance_channels(uint32_t receives);
  void finish_channel(ChannelState &channel);
  uint32_t nccl_rank(uint32_t plan_rank) const { return context_.placement.nccl_rank[plan_rank]; }

  const RankContext &context_;
  ChannelContext &shared_;
  HostPathShares &shares_;
  Breakdown &breakdown_;
  uint32_t channel_limit_ = 0;
  const CallCut *cut_ = nullptr;
  bool sends_first_ = false;  // steps that send go before steps that receive
  bool is_broken_ = false;
  uint32_t remaining_ = 0;  // channels that still run
  std::vector<ChannelState> channels_;
};

}  // namespace collc
