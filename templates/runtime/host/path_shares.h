// The share of each path class (nvlink, pcie, net) in the calls of one rank on the host target, where all classes are memory:
// the weights of a call, the times when the classes have done their part, and classes that have failed.
//
// Owner: HostRank. Threads: the one that makes calls; lose_class() may come from any thread. No call blocks.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/element.h"
#include "control/balancer.h"
#include "control/report_loss.h"
#include "executor/backend.h"
#include "plan/weights.h"

namespace collc {

class HostPathShares final : public PathClasses {
 public:
  explicit HostPathShares(const RankContext &context) : context_(context) {}

  void open(const Overrides &overrides) {
    weighting_ = overrides.weighting;
    losses_ = context_.segment->losses(context_.rank);
    balancer_ = Balancer::make(*context_.segment, *context_.tables, context_.placement, context_.rank, overrides,
                               context_.weights, true);
  }

  // Returns false if the call may not begin before other ranks have answered (control/agreement.h); the caller asks again.
  bool may_begin(const Call &call) {
    return balancer_ == nullptr || call.program == nullptr || balancer_->may_start(call.number);
  }
  // True while may_begin() returns false.
  bool is_agreeing() const { return balancer_ != nullptr && balancer_->is_waiting(); }
  // Looks for reasons to begin the call with the weights of before. `waited_us`: since the first may_begin() of the call.
  void end_agreeing(int64_t waited_us) {
    for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
      const bool left = context_.segment->has_left(peer);
      if (left || !context_.segment->alive(peer))
        return balancer_->give_up(context_.placement.name_of(peer) + (left ? " has destroyed its communicator" : " has died"));
    }
    if (waited_us > kAgreeUs) balancer_->give_up_on_silent();
  }

  // Returns the weights of a call that runs a program; 0: the program has one class. `number`: of the program in the
  // allocation.
  uint32_t choose(const Call &call, const Program &program, size_t number) {
    const uint32_t tuned = context_.weights.empty() ? 0 : context_.weights[number], own = program_weights(program);
    const uint32_t lost = own == 0 ? 0 : losses_.begin(call.number);
    weights_ = balancer_ == nullptr ? remove_classes(lost, call_weights(program, weighting_, call.number, tuned), own)
                                    : balancer_->start(program, call.number, call.count * element_bytes(call.type), lost);
    is_timed_ = balancer_ != nullptr ? balancer_->times() : is_forced_;
    return weights_;
  }

  // The call begins to run over FIFOs.
  void begin_parts() {
    begun_ns_ = is_timed_ ? now_ns() : 0;
    for (uint64_t &ended : ended_ns_) ended = 0;
  }
  // A channel of a class has ended.
  void end_part(uint32_t path_class) {
    if (is_timed_) ended_ns_[path_class] = now_ns();
  }
  // The call has ended, over FIFOs or without.
  void end_call(uint64_t number) {
    if (is_timed_ && balancer_ != nullptr) balancer_->tell(number, begun_ns_, ended_ns_);
    is_timed_ = false;
  }

  // A bit for each class that has failed.
  uint32_t lost() const { return losses_.lost(); }

  void force_weights(uint32_t weights) override {
    balancer_.reset();
    weighting_ = {weights, 0};
    is_forced_ = true;
  }
  bool lose_class(uint32_t path_class, const std::string &why) override {
    return report_loss(losses_, context_.rank, path_class, why);
  }
  bool class_times(uint64_t (&spent)[kClasses]) override {
    for (uint32_t c = 0; c < kClasses; ++c) spent[c] = (weights_ >> 8 * c & 0xff) != 0 ? ended_ns_[c] - begun_ns_ : 0;
    return is_forced_ && begun_ns_ != 0 && weights_ != 0;
  }

 private:
  // If a rank does not come to its next call in this time, all weights stay as they are.
  static constexpr int64_t kAgreeUs = 1000000;

  const RankContext &context_;
  Losses losses_;
  Weighting weighting_;                 // agreed with the other ranks
  std::unique_ptr<Balancer> balancer_;  // null: the weights of calls do not change
  bool is_forced_ = false;              // by force_weights()
  uint32_t weights_ = 0;                // of the current call
  bool is_timed_ = false;               // the current call reports when each class has done its part
  uint64_t begun_ns_ = 0;               // 0: the current call is not timed, or does not run over FIFOs
  uint64_t ended_ns_[kClasses] = {};
};

}  // namespace collc
