// Runs the current call on buffers that all ranks see, without FIFOs: each rank reads the inputs of all others in place and
// stores its results where they belong (transport/single_copy.h).
//
// Owner: HostRank. Threads: the one that makes calls. No call waits for another rank; advance() copies and reduces this rank's
// part.
#pragma once
#include <cstdint>
#include <string>

#include "host/breakdown.h"
#include "host/call_cut.h"
#include "host/channel.h"
#include "transport/single_copy.h"

namespace collc {

class SingleCopyCall {
 public:
  SingleCopyCall(const RankContext &context, ChannelContext &shared, Breakdown &breakdown);

  // Returns false while no rank has a buffer to offer.
  bool may_offer() const { return !copy_.is_idle(); }
  // Offers the buffers of the running call to all ranks, if that can take less time than FIFOs. `cut` must stay until the call
  // has ended. The call runs here only if is_running() is true afterwards.
  void offer(const CallCut &cut, const PathChooser &chooser);
  bool is_running() const { return state_ != State::kIdle; }

  enum class Outcome : uint8_t {
    kWaits,  // for another rank
    kFifos,  // the ranks have agreed that the call runs over FIFOs; it does not run here any more
    kDone,  // the call has ended
    kDiffers,  // the rank blocked_on() has made another call
    kBroken,  // the communicator was aborted
  };
  // Does what can be done without waiting. Must be called while is_running().
  Outcome advance();
  // Ends the call without running it.
  void stop() { state_ = State::kIdle; }

  uint32_t blocked_on() const { return copy_.blocked_on(); }
  // Returns true if `peer` may store results in this rank's output. withdraw(): no peer has the output mapped any longer.
  bool offers_output_to(uint32_t peer) const { return copy_.offers_output() && shared_.neighbors.maps_of(peer); }
  void withdraw() { copy_.withdraw(); }
  std::string describe_wait() const;

 private:
  enum class State : uint8_t { kIdle, kAgreeing, kFinishing };

  bool is_in_place() const;
  void prefetch_output() const;
  bool run();
  void run_own_steps(size_t begin, size_t end);
  void move_piece(const OwnStep &own, const ShareRange &share, uint64_t begin, uint64_t elements);
  void count_time(uint32_t channel, uint64_t begin_ns, bool reduced);
  uint32_t nccl_rank(uint32_t plan_rank) const { return context_.placement.nccl_rank[plan_rank]; }

  const RankContext &context_;
  ChannelContext &shared_;
  Breakdown &breakdown_;
  SingleCopy copy_;
  State state_ = State::kIdle;
  const CallCut *cut_ = nullptr;
  std::vector<uint64_t> busy_ns_;  // by channel, of this call
};

}  // namespace collc
