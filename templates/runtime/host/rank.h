// One rank on the host target: its ends of the FIFOs, and the call that it is executing.
#pragma once
#include <memory>
#include <vector>

#include "executor/backend.h"
#include "control/balancer.h"
#include "control/deadlock.h"
#include "control/report_loss.h"
#include "transport/neighbours.h"
#include "host/channel.h"
#include "host/link_bench.h"
#include "host/spread.h"
#include "transport/single_copy.h"
#include "transport/transfers.h"

namespace collc {

// The layout of the whole target's memory: FIFOs of the programs, then the queues of transfers.
TransferLayout host_layout(const Tables &tables, const Placement &placement);

class HostRank final : public RankBackend, public ProgramChooser, public PathClasses {
 public:
  explicit HostRank(const RankContext &context);
  // Finds out how the ranks reach each other's memory; collective, while the communicator is made.
  Status connect(const RankContext &context);

  // Says what this rank calls.
  void note(const Call &call) {
    context_.segment->note_call(context_.rank, log_, call.number, call.signature, call.count, call.packed_call);
  }
  // A call that moves nothing: it has ended as soon as the others can know of it.
  void note_nothing(const Call &call) {
    note(call);
    log_.end(call.number);
  }
  // False: the call may not begin before other ranks have answered (control/agreement.h); look again.
  bool may_begin(const Call &call) {
    return balancer_ == nullptr || call.program == nullptr || balancer_->may_start(call.number);
  }
  // Chunks wait for a clock, which rings no bell.
  bool is_throttled() const { return shared_.throttle.is_set(); }
  // Makes `call` the current collective; it stands until that is done.
  void begin(const Call &call);
  // Adds a transfer beside it; its status is set if it fails.
  void post(const Call &call, Status *status) {
    note_transfer(call);
    transfers_.post(call, status);
  }
  // Says that the transfers since the last time have ended, unless one failed.
  void end_transfers();
  bool has_open_transfers() const { return open_call_ != 0 || ended_transfers_ != posted_transfers_; }
  // Advances every channel and transfer as far as it goes; returns true if any moved.
  bool advance();
  bool done() const { return remaining_ == 0 && mode_ == Mode::kFifos; }
  bool idle() const { return done() && transfers_.idle(); }
  void adapt(Choices *choices) const override;
  const Program &choose(const Program &program, const Program &otherwise, uint64_t bytes) const override {
    return is_summed_everywhere(bytes) ? program : otherwise;
  }
  uint32_t protocol_of(const Program &program, uint64_t) const override { return program.protocol; }
  bool can_run(const Program &, const Call *) const override { return true; }
  uint64_t gpu_bytes() const override { return 0; }
  Status make_link_bench(uint64_t bytes, std::unique_ptr<LinkBench> *made) override {
    *made = std::make_unique<HostBench>(bytes, shared_.neighbours, &most_wait_);
    return {};
  }
  PathClasses *path_classes() override { return this; }
  const ProgramChooser *chooser() const override { return this; }
  std::vector<ChannelTimes> times() const override { return times_; }
  void force_weights(uint32_t weights) override {
    balancer_.reset();
    weighting_ = {weights, 0};
    forced_weights_ = true;
  }
  bool lose_class(uint32_t part, const std::string &why) override { return report_loss(losses_, context_.rank, part, why); }
  bool class_times(uint64_t (&spent)[kClasses]) override {
    for (uint32_t c = 0; c < kClasses; ++c)
      spent[c] = cut_ != nullptr && (cut_->weights >> 8 * c & 0xff) != 0 ? ended_parts_ns_[c] - begun_parts_ns_ : 0;
    return forced_weights_ && begun_parts_ns_ != 0 && cut_ != nullptr && cut_->weights != 0;
  }
  // The error that broke the communicator; after it nothing runs.
  const Status &failure() const { return failure_; }
  // Looks for reasons never to be served: an abort, a dead peer, a peer that calls something else, the time limit.
  void diagnose(int64_t waited_us);
  // Marks those without whom this rank cannot go on; says what it is in.
  // An error if this rank waits for one of another machine, and the process that joined this machine with others has ended.
  Status find_cut() const;
  InCall find_waits(std::vector<bool> *ranks) const;

  Segment &segment() { return *context_.segment; }
  uint32_t rank() const { return context_.rank; }
  // True if a rank that this one waits for was last seen on this core.
  bool shares_core() const;
  bool cores_are_free() const { return busy_ <= context_.cores; }
  // The thread that calls this serves no other rank, and may move to another core.
  void spread() {
    if (!cores_are_free() && context_.placement.machine.empty()) spread_.look(*context_.segment, context_.rank);
  }
  // Such waits are long for a core: the courier, and ranks of containers beside this one, have use for it.
  bool waits_for_network() const { return context_.placement.nmachines() > 1; }

 private:
  // A step in which this rank computes or copies in a call of a single copy.
  struct OwnStep {
    const Step *step;
    uint32_t channel;
  };

  // How the last call of a program was cut: the same call again, as in training, computes nothing.
  struct Cut {
    uint64_t count = 0;
    uint32_t element_bytes = 0;
    uint32_t weights = 0;  // of the classes of links
    bool any_far = false, counts_far = false;  // as it was then
    bool exchanges = false;  // each of two ranks hears from the other
    std::vector<ShareRange> shares;
    std::vector<uint64_t> iterations;  // by channel
    bool reduces_what_it_sends = false;
    bool streams = false, streams_slots = false, pulled = false, sums_everywhere = false;  // as RunningCall's
    bool streams_one_copy = false;  // `streams` of a call of one copy
    OneHop hop;
    std::vector<OwnStep> own_steps;  // of a program of one hop
    size_t nbefore = 0;              // this many run before the rank reports that it has finished; the others need no peer
  };

  // How the current call runs.
  enum class Mode : uint8_t {
    kFifos,
    kAgreeing,   // on buffers that all see, or FIFOs
    kFinishing,  // on such buffers, waits until others are done with its own
  };

  void note_transfer(const Call &call);
  void end_agreeing(int64_t waited_us);
  // Ends what runs and breaks the communicator for all ranks.
  void fail_all(const Status &status);
  const Cut &cut(const Call &call, const Program &program);
  uint32_t most_chunk(const Program &program) const;
  void take(const Program &program);
  const Program &chosen() const {
    const Call &call = *shared_.running.call;
    return choose(*call.program, *call.alternative, output_bytes());
  }
  bool reduces_what_it_sends(const Program &program) const;
  void choose_reduction();
  void copy_alone(const Call &call);
  bool is_reading(uint32_t peer) const;
  void wait_for_writer(uint32_t peer, int64_t start_us);
  bool advance_channels(uint32_t receives);
  void begin_fifos();
  // A call on buffers that all ranks see (single_copy_call.cpp).
  void find_own_steps(const Program &program, Cut *cut) const;
  bool pays_to_offer() const;
  void offer();
  bool are_apart() const;
  bool in_place() const;
  bool advance_single_copy();
  bool fail_if_different();
  void run_single_copy();
  void prefetch_output() const;
  void run_own_steps(size_t begin, size_t end);
  void move_piece(const OwnStep &own, const ShareRange &share, uint64_t begin, uint64_t elements);
  void finish_channel(ChannelState &channel);
  // Says that others need no more of this rank for the call that runs.
  void finish_call() {
    const uint64_t number = shared_.running.call->number;
    if (timed_parts_ && balancer_ != nullptr) balancer_->tell(number, begun_parts_ns_, ended_parts_ns_);
    timed_parts_ = false;
    context_.segment->line(context_.rank).calls.finished.store(number, std::memory_order_release);
    log_.end(number);
  }
  void count_time(size_t channel, uint64_t nanoseconds, bool reduced) {
    (reduced ? times_[channel].reducing : times_[channel].copying) += nanoseconds;
    channels_[channel].busy_ns += nanoseconds;
  }
  uint64_t input_bytes() const;
  uint64_t output_bytes() const;
  bool is_streamed(bool through_slots) const;
  bool is_pulled() const;
  bool sums_everywhere(const Program &program) const;
  bool is_summed_everywhere(uint64_t bytes) const;
  bool reduces_everywhere(const Program &program) const;
  bool exchanges(const Program &program, const std::vector<ShareRange> &shares) const;
  bool streams_slots() const;
  std::string waiting_for(const ChannelState &channel) const;
  std::string waiting_for_any() const;
  Status differing_transfer(const Transfers::Difference &difference) const;
  const RankChannel &rank_channel(const Program &program, uint32_t channel) const {
    return context_.tables->rank_channels[program.first_rank_channel + plan_rank_ * program.nchannels + channel];
  }
  uint32_t nccl_rank(uint32_t plan_rank) const { return context_.placement.nccl_rank[plan_rank]; }

  RankContext context_;
  uint32_t busy_;  // threads on this machine that may want a core each: its ranks, and a courier
  ChannelContext shared_;
  Spread spread_;
  CallLog log_;
  CallLog transfer_log_;
  uint64_t open_call_ = 0;  // a collective made of transfers that runs; 0: none
  uint64_t posted_transfers_ = 0, ended_transfers_ = 0;  // of ncclSend and ncclRecv
  uint32_t plan_rank_;
  double most_wait_ = 0;  // seconds, during a check of links; 0: no limit
  bool timed_ = false;  // COLLC_BREAKDOWN
  uint64_t begun_ns_ = 0;
  std::vector<ChannelTimes> times_;
  Losses losses_;               // classes of links that have failed
  Weighting weighting_;         // agreed with the other ranks
  // Of two ranks: one of them has said in the last all_reduce that the other is far away. Calls choose their programs by that.
  bool agreed_far_ = false;
  std::unique_ptr<Balancer> balancer_;  // null: the weights of calls do not change
  bool forced_weights_ = false;  // by force_weights()
  bool timed_parts_ = false;  // the current call tells when each class of links has done its part
  uint64_t begun_parts_ns_ = 0;  // 0: it does not run over FIFOs
  uint64_t ended_parts_ns_[kClasses] = {};
  uint32_t chunk_limit_ = 0;  // COLLC_CHUNK; 0: as the program says
  uint32_t channel_limit_ = 0;  // channels that run side by side; 0: all
  bool forced_ = false;  // COLLC_PROTO: everything goes through FIFOs

  ncclDataType_t reduced_type_ = {};
  ncclRedOp_t reduced_op_ = {};
  bool serves_first_ = false;  // sends go before steps that receive
  std::vector<Cut> cuts_;  // by program of the allocation
  const Cut *cut_ = nullptr;  // of the current call
  Mode mode_ = Mode::kFifos;
  SingleCopy single_copy_;
  std::vector<ChannelState> channels_;
  uint32_t remaining_ = 0;  // channels that still run
  Transfers transfers_;
  Status failure_;
};

}  // namespace collc
