#include "cuda/deferred_frees.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>

#include "base/clock.h"
#include "base/log.h"

namespace collc::cuda {
namespace {

constexpr int64_t kSoonMs = 500;  // for the ranks of other processes to close what they have mapped
constexpr int64_t kWarnAfterMs = 10000;  // ranks mostly end a communicator within seconds of each other

using FreesList = std::vector<std::unique_ptr<DeferredFrees>>;

struct Pending {
  std::mutex mutex;
  FreesList all;
  std::shared_mutex launching;
};

std::atomic<bool (*)()> any_runs{nullptr};
std::atomic<Status (*)()> keep{nullptr};

// A forked child has nothing to free, and its parent's threads may have held the locks.
std::atomic<Pending *> current_pending{nullptr};

Pending &pending() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_pending.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
  Pending *known = current_pending.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const created = new Pending;  // outlives every thread
  if (current_pending.compare_exchange_strong(known, created)) return *created;
  delete created;
  return *known;
}

void add_pending(FreesList frees) {
  Pending &self = pending();
  const std::lock_guard<std::mutex> lock(self.mutex);
  std::move(frees.begin(), frees.end(), std::back_inserter(self.all));
}

void add_pending(std::unique_ptr<DeferredFrees> frees) {
  FreesList one;
  one.push_back(std::move(frees));
  add_pending(std::move(one));
}

bool is_pending(const DeferredFrees *frees) {
  Pending &self = pending();
  const std::lock_guard<std::mutex> lock(self.mutex);
  return std::any_of(self.all.begin(), self.all.end(), [frees](const auto &one) { return one.get() == frees; });
}

// Takes out what no graph uses, if the last kernels of all have ended: freeing waits for any kernel.
FreesList take_unused() {
  Pending &self = pending();
  const std::lock_guard<std::mutex> lock(self.mutex);
  FreesList taken;
  if (!std::all_of(self.all.begin(), self.all.end(), [](const auto &one) { return one->is_quiet(); })) return taken;
  const auto used = std::partition(self.all.begin(), self.all.end(), [](const auto &one) { return one->has_graphs(); });
  std::move(used, self.all.end(), std::back_inserter(taken));
  self.all.erase(used, self.all.end());
  return taken;
}

void start_watching() {
  if (const Status watching = keep.load()(); !watching.ok()) log(LogLevel::kWarn, "%s", watching.text().c_str());
}

// Not 0 once a rank no longer touches other ranks' memory: one word per rank in the shared segment.
std::atomic<uint32_t> &closed_word(Segment &segment, uint32_t nccl_rank) {
  return *reinterpret_cast<std::atomic<uint32_t> *>(segment.memory() + nccl_rank * kLine);
}

std::string list_of(const std::vector<uint32_t> &ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += format("%s%u", text.empty() ? "" : ", ", rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

void set_release_hooks(const ReleaseHooks &hooks) {
  any_runs = hooks.any_kernel_runs;
  keep = hooks.keep_watching;
}

std::shared_mutex &launching() { return pending().launching; }

void DeferredFrees::free_memory(const Device *device, Address at) {
  items_.push_back({device, [at] { driver().release(at); }});
}

void DeferredFrees::close_handle(const Device *device, Address at) { handles_.emplace_back(device, at); }

void DeferredFrees::unmap(const Device *device, const VirtualMemory &memory) {
  items_.push_back({device, [memory] { cuda::unmap(memory); }});
}

void DeferredFrees::free_pinned(const Device *device, void *at) {
  items_.push_back({device, [at] { driver().release_host(at); }});
}

void DeferredFrees::destroy(const Device *device, Event event) {
  items_.push_back({device, [event] { driver().event_destroy(event); }});
}

void DeferredFrees::unpin(char *at) {
  items_.push_back({nullptr, [at] { driver().unregister_host(at); }});
}

void DeferredFrees::drop(std::unique_ptr<PinnedMemory> pinned) {
  items_.push_back({nullptr, [shared = std::shared_ptr<PinnedMemory>(std::move(pinned))]() mutable { shared = nullptr; }});
}

void DeferredFrees::free_exported(const Device *device, Address at) {
  exported_.push_back({device, [at] { driver().release(at); }});
}

void DeferredFrees::merge(std::unique_ptr<DeferredFrees> other) {
  const auto move_all = [](auto &from, auto *to) { std::move(from.begin(), from.end(), std::back_inserter(*to)); };
  move_all(other->items_, &items_);
  move_all(other->handles_, &handles_);
  move_all(other->exported_, &exported_);
  move_all(other->events_, &events_);
  move_all(other->graphs_, &graphs_);
}

void DeferredFrees::set_ranks(std::shared_ptr<Segment> segment, std::vector<uint32_t> importers_here,
                              std::vector<uint32_t> importers) {
  segment_ = std::move(segment);
  importers_here_ = std::move(importers_here);
  importers_ = std::move(importers);
  closed_ = false;
}

bool DeferredFrees::is_quiet() const {
  return std::all_of(events_.begin(), events_.end(),
                     [](const auto &last) { return !is_alive(*last.first) || driver().event_query(last.second) != kNotReady; });
}

bool DeferredFrees::has_graphs() const {
  return std::any_of(graphs_.begin(), graphs_.end(), [](const auto &count) { return count->any(); });
}

void DeferredFrees::free_all(std::vector<Item> *items) {
  for (const Item &item : *items) {
    if (item.device == nullptr) {
      item.free();
    } else if (is_alive(*item.device)) {
      const Current current(item.device->context);
      item.free();
    }
  }
  items->clear();
}

// Returns false if the driver has refused to close one: its memory is still mapped here.
bool DeferredFrees::close_handles() {
  bool all_closed = true;
  for (const auto &[device, at] : handles_) {
    if (!is_alive(*device)) continue;
    const Current current(device->context);
    all_closed &= driver().ipc_close(at) == 0;
  }
  handles_.clear();
  return all_closed;
}

// The ranks of other processes that may still have exported memory mapped.
std::vector<uint32_t> DeferredFrees::find_importers() const {
  std::vector<uint32_t> ranks;
  std::copy_if(importers_.begin(), importers_.end(), std::back_inserter(ranks), [this](uint32_t rank) {
    return closed_word(*segment_, rank).load(std::memory_order_acquire) == 0 && segment_->alive(rank);
  });
  return ranks;
}

void DeferredFrees::warn(const std::vector<uint32_t> &importers) {
  if (has_warned_ || now_ms() - closed_ms_ < kWarnAfterMs) return;
  has_warned_ = true;
  log(LogLevel::kWarn,
      "GPU memory of %s, whose communicator has ended, stays allocated until this process ends, or until %s, which %s it "
      "mapped, %s that communicator too",
      list_of(importers_here_).c_str(), list_of(importers).c_str(), importers.size() == 1 ? "has" : "have",
      importers.size() == 1 ? "ends" : "end");
}

bool DeferredFrees::free() {
  free_all(&items_);
  const bool all_closed = close_handles();
  events_.clear();
  graphs_.clear();
  if (!closed_) {
    closed_ = true;
    closed_ms_ = now_ms();
    // The memory behind a handle that stays open must live as long as this process.
    if (all_closed)
      for (const uint32_t rank : importers_here_) closed_word(*segment_, rank).store(1, std::memory_order_release);
  }
  if (exported_.empty()) return true;
  if (const std::vector<uint32_t> importers = find_importers(); !importers.empty()) {
    warn(importers);
    return false;
  }
  free_all(&exported_);
  return true;
}

void dispose(std::unique_ptr<DeferredFrees> frees) {
  const DeferredFrees *const mine = frees.get();
  const bool has_graphs = frees->has_graphs();
  dispose_without_waiting(std::move(frees));
  if (has_graphs) return;
  const int64_t start = now_ms();
  const std::function<bool()> runs = any_runs.load();
  while (is_pending(mine) && !runs() && now_ms() - start <= kSoonMs) {
    const timespec nap{0, 1000000};
    nanosleep(&nap, nullptr);
    free_pending(runs);
  }
}

void dispose(std::unique_ptr<PinnedMemory> pinned) {
  if (pinned == nullptr) return;
  auto frees = std::make_unique<DeferredFrees>();
  frees->drop(std::move(pinned));
  dispose(std::move(frees));
}

void dispose_without_waiting(std::unique_ptr<DeferredFrees> frees) {
  if (frees->is_empty()) return;
  add_pending(std::move(frees));
  free_pending(any_runs.load());
  if (has_pending()) start_watching();
}

bool has_pending() {
  Pending &self = pending();
  const std::lock_guard<std::mutex> lock(self.mutex);
  return !self.all.empty();
}

void free_pending(const std::function<bool()> &runs) {
  const Uncaptured uncaptured;
  const std::unique_lock<std::shared_mutex> nobody_launches(launching(), std::try_to_lock);
  if (!nobody_launches.owns_lock() || runs()) return;
  FreesList all = take_unused();
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto &one) { return one->free(); }), all.end());
  add_pending(std::move(all));
}

}  // namespace collc::cuda
