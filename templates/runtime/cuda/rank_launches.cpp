#include "cuda/rank_launches.h"

#include <time.h>

#include "base/clock.h"
#include "cuda/alone.h"

namespace collc::cuda {
namespace {

constexpr int64_t kAbortMs = 500;  // time that an aborted call has to end

void nap_100_us() {
  const timespec nap{0, 100000};
  nanosleep(&nap, nullptr);
}

}  // namespace

Status RankLaunches::open(Device *device, bool in_call_order) {
  device_ = device;
  in_call_order_ = in_call_order;
  COLLC_RETURN_IF_FAILED(check(driver().event_create(&ready_, kEventDisableTiming), "making an event"));
  COLLC_RETURN_IF_FAILED(order_.begin());
  return in_call_order ? device->order->begin() : Status();
}

Status RankLaunches::choose_threads(const World &world, uint32_t most_threads) {
  const uint32_t ranks = world.ranks_on(device_), channels = world.plan().max_channels;
  const uint32_t shared = world.shared_bytes();
  COLLC_RETURN_IF_FAILED(allow_shared(*device_, shared));
  if (ranks > kMaxLaunchRanks)
    return fail(ncclInvalidUsage, "%u ranks share GPU %d; at most %u can", ranks, device_->number, kMaxLaunchRanks);
  if (ranks > 1 && !device_->cooperative)
    return fail(ncclInvalidUsage, "GPU %d cannot hold several ranks: it has no cooperative launch", device_->number);
  for (threads_ = most_threads; threads_ >= kMinThreads; threads_ /= 2) {
    const uint32_t blocks = device_->resident_blocks(threads_, shared);
    if (blocks != 0 && (ranks == 1 || ranks * channels <= blocks)) return {};
  }
  return fail(ncclInvalidUsage,
              "%u ranks of %u channels share GPU %d, which cannot hold so many blocks at once: use fewer ranks", ranks,
              channels, device_->number);
}

void RankLaunches::choose_threads_alone() {
  threads_ = kMaxThreads;
  while (threads_ > kMinThreads && device_->resident_blocks(threads_, shared_bytes(kAloneChannels)) == 0) threads_ /= 2;
}

bool RankLaunches::wait_until_ended(const std::function<bool()> &stopped) const {
  for (int64_t stopped_at = 0; runs(); nap_100_us()) {
    if (stopped_at == 0 && stopped()) stopped_at = now_ms();
    if (stopped_at != 0 && now_ms() - stopped_at > kAbortMs) return false;
  }
  return true;
}

bool RankLaunches::has_calls() const {
  const Current current(device_->context);
  const Uncaptured uncaptured;
  return runs();
}

void RankLaunches::wait_for_aborted() const {
  const Current current(device_->context);
  const Uncaptured uncaptured;
  for (const int64_t start = now_ms(); runs() && now_ms() - start <= kAbortMs;) nap_100_us();
}

void RankLaunches::leave(DeferredFrees *frees, bool ended) {
  const Event done = is_alive(*device_) ? order_.end() : nullptr;
  if (!ended) frees->wait_for(device_, done);
  if (has_graphs()) frees->wait_for(order_.graphs());
  for (const Event event : {done, ready_})
    if (event != nullptr) frees->destroy(device_, event);
}

}  // namespace collc::cuda
