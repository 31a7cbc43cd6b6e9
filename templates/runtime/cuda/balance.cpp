// The weights of a call's classes of links: those that the ranks have agreed on, or the tables' (control/balancer.h).
#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "cuda/rank.h"
#include "plan/weights.h"

namespace collc::cuda {
namespace {

// A rank that does not come to its next call in that time keeps all weights as they are.
constexpr int64_t kAgreeMs = 1000;
constexpr int64_t kSpinMs = 1;
constexpr size_t kMostTimed = 64;  // calls that the kernels may yet tell of
constexpr uint32_t kLooksMissing = 3;  // a link that is trained anew is down for a moment

}  // namespace

void CudaRank::make_balancer(const Overrides &overrides) {
  losses_ = context_.segment->losses(context_.rank);
  if (const std::string &why = connectors_.refusal(kPciePart); !why.empty())
    report_loss(losses_, context_.rank, kPciePart, "its host memory is refused (" + why + ")");
  if (const std::string &why = connectors_.refusal(kNetPart); !why.empty())
    report_loss(losses_, context_.rank, kNetPart, "it joins no ranks of a server (" + why + ")");
  if (is_set("COLLC_WATCH_LINKS") && is_any_cut()) watch_classes();
  balancer_ = Balancer::make(*context_.segment, *context_.tables, context_.placement, context_.rank, overrides,
                             context_.weights, false);
}

void CudaRank::watch_classes() {
  links_ = watch_links(device_->number, context_.placement.bus_ids);
  const Allocation &allocation = *context_.placement.allocation;
  const GraphLink *first = context_.tables->links + allocation.first_link, *last = first + allocation.nlinks;
  // What reaches its CPU over C2C does not pass through its link of PCIe.
  if (std::none_of(first, last, [](const GraphLink &link) { return link.kind == LinkClass::kC2c; }))
    lanes_ = watch_lanes(device_->number);
}

// What the kernels have told since the last call. A call that was not read in time is lost.
void CudaRank::tell_times() {
  for (; !timed_calls_.empty(); timed_calls_.pop_front()) {
    const TimedLaunch &call = timed_calls_.front();
    uint64_t ended[kClasses] = {};
    const ClassTimes times = memory_.class_times();
    const Told told = times.read(world_->plan(), call.row, context_.plan_rank(), call.number, ended);
    if (told == Told::kNotYet) return;
    for (uint32_t c = 0; c < kClasses; ++c)
      if ((call.weights >> 8 * c & 0xff) == 0) ended[c] = 0;
    balancer_->tell(call.number, told == Told::kAll ? 1 : 0, ended);
  }
}

uint32_t CudaRank::tuned_weights(const Program &program) const {
  if (context_.weights.empty()) return 0;
  return context_
      .weights[static_cast<size_t>(&program - context_.tables->programs) - context_.placement.allocation->first_program];
}

void CudaRank::force_weights(uint32_t weights) {
  balancer_.reset();
  timed_calls_.clear();
  forced_weights_ = weights;
}

// The caller has waited for its stream.
bool CudaRank::class_times(uint64_t (&spent)[kClasses]) {
  if (!forced_weights_.has_value() || timed_calls_.empty()) return false;
  const TimedLaunch &call = timed_calls_.back();
  uint64_t ended[kClasses] = {};
  const ClassTimes times = memory_.class_times();
  if (times.read(world_->plan(), call.row, context_.plan_rank(), call.number, ended) != Told::kAll) return false;
  for (uint32_t c = 0; c < kClasses; ++c) spent[c] = (call.weights >> 8 * c & 0xff) != 0 ? ended[c] : 0;
  return true;
}

bool CudaRank::may_start(const Call &call) {
  if (balancer_ == nullptr) return true;
  tell_times();
  return balancer_->may_start(call.number);
}

void CudaRank::end_agreeing(int64_t waited_ms) {
  if (balancer_ == nullptr || !balancer_->is_waiting()) return;
  if (context_.stopped() || context_.segment->aborted()) return balancer_->give_up("the communicator is aborted");
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    const bool left = context_.segment->has_left(peer);
    if (left || !context_.segment->alive(peer))
      return balancer_->give_up(context_.placement.name_of(peer) + (left ? " has destroyed its communicator" : " has died"));
  }
  if (waited_ms > kAgreeMs) balancer_->give_up_on_silent();
}

uint32_t CudaRank::start_weights(const Call &call, uint32_t row, bool *timed) {
  *timed = false;
  const uint32_t own = program_weights(*call.program);
  if (own == 0) return 0;
  bool captured = false;
  bool may_time = CallOrder::is_captured(call.stream, &captured).ok() && !captured;
  // Fewer channels than the program has (COLLC_CHANNELS) serve several classes each, whose times nobody can tell apart.
  may_time = may_time && world_->plan().programs[row].nchannels == call.program->nchannels;
  const uint32_t weights = choose_weights(call, own);
  if (captured) note_captured(weights);
  if (forced_weights_.has_value()) {
    *timed = may_time;
    timed_calls_.clear();
  } else {
    if (balancer_ == nullptr || !balancer_->times()) return weights;
    *timed = may_time;
    if (!*timed) do_without_times(call);  // it is of a call that a graph runs whenever it is launched, say
  }
  if (!*timed) return weights;
  timed_calls_.push_back({call.number, row, weights});
  if (timed_calls_.size() > kMostTimed) timed_calls_.pop_front();
  return weights;
}

// Those of a call by copy engines, which nothing times. Nobody promises that the branches of a graph run beside each other, so
// in one NVLink carries what it can: one class behind the other would take longer than NVLink alone.
uint32_t CudaRank::start_copy_weights(const Call &call, bool captured) {
  const uint32_t own = program_weights(*call.program);
  if (own == 0) return 0;
  uint32_t weights = choose_weights(call, own);
  if (const uint32_t nvlink = weights & 0xffu << 8 * kNvlinkPart; captured && nvlink != 0) weights = nvlink;
  if (captured) note_captured(weights);
  if (forced_weights_.has_value())
    timed_calls_.clear();
  else if (balancer_ != nullptr && balancer_->times())
    do_without_times(call);
  return weights;
}

void CudaRank::do_without_times(const Call &call) {
  const uint64_t nothing[kClasses] = {};
  balancer_->tell(call.number, 0, nothing);
}

uint32_t CudaRank::choose_weights(const Call &call, uint32_t own) {
  const uint32_t lost = losses_.begin(call.number);
  const Weighting wanted = forced_weights_.has_value() ? Weighting{*forced_weights_, 0} : world_->plan().overrides.weighting;
  const uint32_t weights =
      balancer_ != nullptr
          ? balancer_->start(*call.program, call.number, bytes_of(call), lost)
          : remove_classes(lost, call_weights(*call.program, wanted, call.number, tuned_weights(*call.program)), own);
  // Whatever else has failed: of a class that was refused there is nothing to fall back on.
  const uint32_t refused = (connectors_.refusal(kPciePart).empty() ? 0 : 1u << kPciePart) |
                           (connectors_.refusal(kNetPart).empty() ? 0 : 1u << kNetPart);
  return remove_classes(refused, weights, own);
}

void CudaRank::note_captured(uint32_t weights) {
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((weights >> 8 * c & 0xff) != 0) in_graphs_.fetch_or(1u << c, std::memory_order_relaxed);
}

bool CudaRank::lose_class(uint32_t part, const std::string &why) { return report_loss(losses_, context_.rank, part, why); }

// Graphs are launched without a word to this library: what they hold is said as soon as it has failed.
void CudaRank::look_at_classes() {
  if (!is_any_cut()) return;
  const uint32_t lost = losses_.lost();
  const uint32_t stale = lost & in_graphs_.load(std::memory_order_relaxed) & ~told_stale_;
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((stale >> c & 1) != 0)
      log(LogLevel::kWarn, "rank %u: graphs that it has captured hold %s, which has failed: capture them again", context_.rank,
          class_name(c));
  told_stale_ |= stale;
  look_at_links(lost);
}

void CudaRank::look_at_links(uint32_t lost) {
  if (links_ != nullptr && (lost >> kNvlinkPart & 1) == 0 && links_->missing.load(std::memory_order_acquire) >= kLooksMissing)
    report_loss(losses_, context_.rank, kNvlinkPart,
                format("%u of the %u NVLinks of its GPU are up", links_->up.load(std::memory_order_relaxed),
                       static_cast<uint32_t>(links_->links.size())));
  if ((lost >> kPciePart & 1) == 0 && lane_looks_.missing() >= kLooksMissing)
    report_loss(losses_, context_.rank, kPciePart,
                format("its GPU's link of PCIe has %u of its %u lanes", lane_looks_.lately(), lane_looks_.most()));
}

bool CudaRank::is_any_cut() const {
  const DevicePlan &plan = world_->plan();
  return std::find(plan.cut.begin(), plan.cut.end(), true) != plan.cut.end();
}

// One thread answers for all of its ranks before it waits for those of others.
void agree_on_weights(const std::vector<CudaRank *> &ranks, const std::vector<const Call *> &calls) {
  for (const int64_t start = now_ms();;) {
    bool waits = false;
    for (size_t i = 0; i < ranks.size(); ++i) waits |= !ranks[i]->may_start(*calls[i]);
    if (!waits) return;
    const int64_t waited = now_ms() - start;
    if (waited < kSpinMs) continue;
    const timespec nap{0, 50000};
    nanosleep(&nap, nullptr);
    for (CudaRank *rank : ranks) rank->end_agreeing(waited);
  }
}

}  // namespace collc::cuda
