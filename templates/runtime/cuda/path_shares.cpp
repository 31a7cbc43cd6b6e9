#include "cuda/path_shares.h"

#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "control/report_loss.h"
#include "cuda/call_order.h"
#include "plan/weights.h"

namespace collc::cuda {
namespace {

// If a rank does not come to its next call in this time, all weights stay as they are.
constexpr int64_t kAgreeMs = 1000;
constexpr int64_t kSpinMs = 1;
constexpr size_t kMaxTimedCalls = 64;  // calls whose times the kernels may still report

}  // namespace

void PathShares::open(const DevicePlan &plan, DeviceNumber device, const ConnectorMemory &connectors, const ClassTimes &times) {
  plan_ = &plan;
  times_ = times;
  losses_ = context_.segment->losses(context_.rank);
  if (const std::string &why = connectors.refusal(kPciePart); !why.empty()) {
    refused_ |= 1u << kPciePart;
    report_loss(losses_, context_.rank, kPciePart, "its host memory is refused (" + why + ")");
  }
  if (const std::string &why = connectors.refusal(kNetPart); !why.empty()) {
    refused_ |= 1u << kNetPart;
    report_loss(losses_, context_.rank, kNetPart, "it joins no ranks of a server (" + why + ")");
  }
  if (is_set("COLLC_WATCH_LINKS") && has_cut_programs()) links_.begin(context_, device);
  balancer_ = Balancer::make(*context_.segment, *context_.tables, context_.placement, context_.rank, plan.overrides,
                             context_.weights, false);
}

// Tells the balancer what the kernels have reported since the last call. The times of a call that were not read in time are
// lost.
void PathShares::tell_times() {
  for (; !timed_calls_.empty(); timed_calls_.pop_front()) {
    const TimedLaunch &call = timed_calls_.front();
    uint64_t ended[kClasses] = {};
    const Told told = times_.read(*plan_, call.row, context_.plan_rank(), call.number, ended);
    if (told == Told::kNotYet) return;
    for (uint32_t c = 0; c < kClasses; ++c)
      if ((call.weights >> 8 * c & 0xff) == 0) ended[c] = 0;
    balancer_->tell(call.number, told == Told::kAll ? 1 : 0, ended);
  }
}

// Returns the weights of COLLC_TUNING for a program; 0: it has none.
uint32_t PathShares::tuned_weights(const Program &program) const {
  if (context_.weights.empty()) return 0;
  return context_
      .weights[static_cast<size_t>(&program - context_.tables->programs) - context_.placement.allocation->first_program];
}

void PathShares::force_weights(uint32_t weights) {
  balancer_.reset();
  timed_calls_.clear();
  forced_weights_ = weights;
}

// The caller has waited for its stream.
bool PathShares::class_times(uint64_t (&spent)[kClasses]) {
  if (!forced_weights_.has_value() || timed_calls_.empty()) return false;
  const TimedLaunch &call = timed_calls_.back();
  uint64_t ended[kClasses] = {};
  if (times_.read(*plan_, call.row, context_.plan_rank(), call.number, ended) != Told::kAll) return false;
  for (uint32_t c = 0; c < kClasses; ++c) spent[c] = (call.weights >> 8 * c & 0xff) != 0 ? ended[c] : 0;
  return true;
}

bool PathShares::may_start(const Call &call) {
  if (balancer_ == nullptr) return true;
  tell_times();
  return balancer_->may_start(call.number);
}

void PathShares::end_agreeing(int64_t waited_ms) {
  if (balancer_ == nullptr || !balancer_->is_waiting()) return;
  if (context_.stopped() || context_.segment->aborted()) return balancer_->give_up("the communicator is aborted");
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    const bool left = context_.segment->has_left(peer);
    if (left || !context_.segment->alive(peer))
      return balancer_->give_up(context_.placement.name_of(peer) + (left ? " has destroyed its communicator" : " has died"));
  }
  if (waited_ms > kAgreeMs) balancer_->give_up_on_silent();
}

uint32_t PathShares::start(const Call &call, uint32_t row, bool *is_timed) {
  *is_timed = false;
  const uint32_t table_weights = program_weights(*call.program);
  if (table_weights == 0) return 0;
  bool is_captured = false;
  bool may_time = CallOrder::is_captured(call.stream, &is_captured).ok() && !is_captured;
  // If COLLC_CHANNELS leaves fewer channels than the program has, each serves several classes, whose times cannot be told
  // apart.
  may_time = may_time && plan_->programs[row].nchannels == call.program->nchannels;
  const uint32_t weights = choose(call, table_weights);
  if (is_captured) note_captured(weights);
  if (forced_weights_.has_value()) {
    *is_timed = may_time;
    timed_calls_.clear();
  } else {
    if (balancer_ == nullptr || !balancer_->times()) return weights;
    *is_timed = may_time;
    if (!*is_timed) tell_nothing(call);
  }
  if (!*is_timed) return weights;
  timed_calls_.push_back({call.number, row, weights});
  if (timed_calls_.size() > kMaxTimedCalls) timed_calls_.pop_front();
  return weights;
}

// The branches of a graph need not run side by side. So in a graph NVLink carries everything that it can: two classes one after
// the other would take longer than NVLink without a second class.
uint32_t PathShares::start_copies(const Call &call, bool is_captured) {
  const uint32_t table_weights = program_weights(*call.program);
  if (table_weights == 0) return 0;
  uint32_t weights = choose(call, table_weights);
  if (const uint32_t nvlink = weights & 0xffu << 8 * kNvlinkPart; is_captured && nvlink != 0) weights = nvlink;
  if (is_captured) note_captured(weights);
  if (forced_weights_.has_value())
    timed_calls_.clear();
  else if (balancer_ != nullptr && balancer_->times())
    tell_nothing(call);
  return weights;
}

// Tells the balancer that nobody times a call, so that it does not wait for its times.
void PathShares::tell_nothing(const Call &call) {
  const uint64_t nothing[kClasses] = {};
  balancer_->tell(call.number, 0, nothing);
}

uint32_t PathShares::choose(const Call &call, uint32_t table_weights) {
  const uint32_t lost = losses_.begin(call.number);
  const Weighting wanted = forced_weights_.has_value() ? Weighting{*forced_weights_, 0} : plan_->overrides.weighting;
  const uint32_t weights =
      balancer_ != nullptr
          ? balancer_->start(*call.program, call.number, bytes_of(call), lost)
          : remove_classes(lost, call_weights(*call.program, wanted, call.number, tuned_weights(*call.program)), table_weights);
  // A refused class stays out, whatever else has failed.
  return remove_classes(refused_, weights, table_weights);
}

void PathShares::note_captured(uint32_t weights) {
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((weights >> 8 * c & 0xff) != 0) in_graphs_.fetch_or(1u << c, std::memory_order_relaxed);
}

bool PathShares::lose_class(uint32_t path_class, const std::string &why) {
  return report_loss(losses_, context_.rank, path_class, why);
}

// A graph launch does not call this library, so the log names stale graphs as soon as a class has failed.
void PathShares::look() {
  if (!has_cut_programs()) return;
  const uint32_t lost = losses_.lost();
  const uint32_t stale = lost & in_graphs_.load(std::memory_order_relaxed) & ~reported_stale_;
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((stale >> c & 1) != 0)
      log(LogLevel::kWarn, "rank %u: graphs that it has captured hold %s, which has failed: capture them again", context_.rank,
          class_name(c));
  reported_stale_ |= stale;
  for (const uint32_t path_class : {kNvlinkPart, kPciePart}) {
    if ((lost >> path_class & 1) != 0) continue;
    const std::string why = path_class == kNvlinkPart ? links_.find_lost_links() : links_.find_lost_lanes();
    if (!why.empty()) report_loss(losses_, context_.rank, path_class, why);
  }
}

bool PathShares::has_cut_programs() const { return std::find(plan_->cut.begin(), plan_->cut.end(), true) != plan_->cut.end(); }

// The thread answers for all of its ranks before it waits for other ranks.
void agree_on_weights(const std::vector<PathShares *> &ranks, const std::vector<const Call *> &calls) {
  for (const int64_t start = now_ms();;) {
    bool waits = false;
    for (size_t i = 0; i < ranks.size(); ++i) waits |= !ranks[i]->may_start(*calls[i]);
    if (!waits) return;
    const int64_t waited = now_ms() - start;
    if (waited < kSpinMs) continue;
    const timespec nap{0, 50000};
    nanosleep(&nap, nullptr);
    for (PathShares *rank : ranks) rank->end_agreeing(waited);
  }
}

}  // namespace collc::cuda
