#include "cuda/kernel_memory.h"

#include <algorithm>
#include <cstring>

#include "base/environment.h"
#include "cuda/alone.h"
#include "cuda/fill.h"
#include "cuda/rank_tables.h"

namespace collc::cuda {
namespace {

constexpr size_t kReportsAt = 128;  // offset of the reports in the pinned memory, behind the line of the abort flag
constexpr size_t kTimesAlignment = 128;

}  // namespace

Status KernelMemory::open(const DevicePlan &plan, uint32_t plan_rank, uint64_t timeout_ns, const Connectors &connectors) {
  const Driver &cu = driver();
  nchannels_ = plan.max_channels;
  nreports_ = std::max(plan.max_channels, plan.lanes.lanes);
  times_at_ = (kReportsAt + nreports_ * sizeof(Report) + kTimesAlignment - 1) / kTimesAlignment * kTimesAlignment;
  COLLC_RETURN_IF_FAILED(put_on_device(connectors.p2p.data(), connectors.p2p.size() * sizeof(FifoEnd), &p2p_));
  COLLC_RETURN_IF_FAILED(check(cu.allocate(&messages_, kTableMessages * sizeof(Message)), "allocating GPU memory"));
  const size_t bytes = times_at_ + ClassTimes::bytes(nchannels_);
  void *pinned = nullptr;
  Address pinned_at = 0;
  COLLC_RETURN_IF_FAILED(check(cu.allocate_host(&pinned, bytes, kHostPortableMapped), "allocating pinned memory"));
  pinned_ = static_cast<char *>(pinned);
  std::memset(pinned_, 0, bytes);
  COLLC_RETURN_IF_FAILED(check(cu.host_address(&pinned_at, pinned, 0), "mapping pinned memory"));
  RankState state = {};
  state.lane_ends = reinterpret_cast<FifoEnd *>(p2p_);
  state.nlanes = plan.lanes.lanes;
  state.lane_slots = plan.lanes.slots;
  state.lane_bytes = plan.lanes.bytes;
  state.reports = reinterpret_cast<Report *>(pinned_at + kReportsAt);
  state.times = reinterpret_cast<ChannelTime *>(pinned_at + times_at_);
  state.ntimes = nchannels_;
  state.abort_flag = reinterpret_cast<uint32_t *>(pinned_at);
  state.timeout_ns = timeout_ns;
  state.nranks = plan.nranks;
  if (kernels_count()) {
    const std::vector<ChannelTicks> none(nchannels_);
    COLLC_RETURN_IF_FAILED(put_on_device(none.data(), none.size() * sizeof(ChannelTicks), &ticks_));
    state.ticks = reinterpret_cast<ChannelTicks *>(ticks_);
    has_breakdown_ = is_set("COLLC_BREAKDOWN");
  }
  const RankTables tables = make_tables(plan, plan_rank, state, connectors.fifos);
  return put_on_device(tables.data(), tables.size() * sizeof(TableUnit), &state_);
}

Status KernelMemory::open_alone() { return make_alone(&state_); }

bool KernelMemory::find_report(Report *report, uint32_t *channel) const {
  for (*channel = 0; *channel < nreports_; ++*channel) {
    std::memcpy(report, pinned_ + kReportsAt + *channel * sizeof(Report), sizeof *report);
    const auto state = static_cast<ReportState>(report->state);
    if (state == ReportState::kTimedOut || state == ReportState::kDiffers) return true;
  }
  return false;
}

std::vector<ChannelTimes> KernelMemory::times() const {
  if (!has_breakdown_) return {};
  std::vector<ChannelTicks> sums(nchannels_);
  if (driver().context_synchronize() != 0 || driver().download(sums.data(), ticks_, sums.size() * sizeof sums[0]) != 0)
    return {};
  std::vector<ChannelTimes> times;
  for (const ChannelTicks &one : sums) {
    double all = 0;
    for (const uint64_t spent : one.spent) all += static_cast<double>(spent);
    const double tick = all == 0 ? 0 : static_cast<double>(one.ns) / all;
    const auto ns = [&](Activity what) {
      return static_cast<uint64_t>(static_cast<double>(one.spent[static_cast<uint32_t>(what)]) * tick);
    };
    times.push_back({ns(Activity::kWaiting), ns(Activity::kCopying), ns(Activity::kReducing)});
  }
  return times;
}

void KernelMemory::leave(DeferredFrees *frees, const Device *device) const {
  for (const Address at : {p2p_, messages_, state_, ticks_})
    if (at != 0) frees->free_memory(device, at);
  if (pinned_ != nullptr) frees->free_pinned(device, pinned_);
}

}  // namespace collc::cuda
