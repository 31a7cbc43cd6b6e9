#include "cuda/remains.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"

namespace collc::cuda {
namespace {

constexpr int64_t kPatienceMs = 500;  // for the ranks of other processes to close what they have mapped

using RemainsList = std::vector<std::unique_ptr<Remains>>;

struct Buried {
  std::mutex mutex;
  RemainsList all;
  std::shared_mutex launching;
};

std::atomic<bool (*)()> any_runs{nullptr};
std::atomic<Status (*)()> keep{nullptr};

// A forked child has nothing to free, and its parent's threads may have held the locks.
std::atomic<Buried *> current_buried{nullptr};

Buried &buried() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_buried.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
  Buried *known = current_buried.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new Buried;  // outlives every thread
  if (current_buried.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

void bury(RemainsList remains) {
  Buried &self = buried();
  const std::lock_guard<std::mutex> lock(self.mutex);
  std::move(remains.begin(), remains.end(), std::back_inserter(self.all));
}

void bury(std::unique_ptr<Remains> remains) {
  RemainsList one;
  one.push_back(std::move(remains));
  bury(std::move(one));
}

bool is_buried(const Remains *remains) {
  Buried &self = buried();
  const std::lock_guard<std::mutex> lock(self.mutex);
  return std::any_of(self.all.begin(), self.all.end(), [remains](const auto &one) { return one.get() == remains; });
}

// Everything, if the last kernels of all have ended: freeing waits for any.
RemainsList dig_up() {
  Buried &self = buried();
  const std::lock_guard<std::mutex> lock(self.mutex);
  RemainsList taken;
  if (std::all_of(self.all.begin(), self.all.end(), [](const auto &one) { return one->is_quiet(); })) taken.swap(self.all);
  return taken;
}

void have_watched() {
  if (const Status watching = keep.load()(); !watching.ok()) log(LogLevel::kWarn, "%s", watching.text().c_str());
}

}  // namespace

void set_undertaker(const Undertaker &undertaker) {
  any_runs = undertaker.any_kernel_runs;
  keep = undertaker.keep_watching;
}

std::shared_mutex &launching() { return buried().launching; }

std::atomic<uint32_t> &closed(Segment &segment, uint32_t nccl_rank) {
  return *reinterpret_cast<std::atomic<uint32_t> *>(segment.memory() + nccl_rank * kLine);
}

bool Remains::others_are_done() const {
  return segment == nullptr || segment->aborted() || std::all_of(others.begin(), others.end(), [this](uint32_t rank) {
           return closed(*segment, rank).load(std::memory_order_acquire) != 0 || !segment->alive(rank);
         });
}

bool Remains::is_quiet() const {
  return std::all_of(events.begin(), events.end(), [](Event event) { return driver().event_query(event) != kNotReady; });
}

bool Remains::free() {
  const Driver &cu = driver();
  if (!closed_) {
    closed_ = true;
    for (const auto &[device, at] : mapped) {
      const Current current(device->context);
      cu.ipc_close(at);
    }
    for (const VirtualMemory &memory : virtual_memory) unmap(memory);
    virtual_memory.clear();
    pinned.clear();
    for (void *at : registered) cu.unregister_host(at);
    registered.clear();
    for (void *at : host) cu.release_host(at);
    for (const Event event : events) cu.event_destroy(event);
    events.clear();
    for (const uint32_t rank : mine) closed(*segment, rank).store(1, std::memory_order_release);
  }
  if (!others_are_done()) return false;
  for (const auto &[device, at] : allocated) {
    const Current current(device->context);
    cu.release(at);
  }
  return true;
}

void dispose(std::unique_ptr<Remains> remains, bool waits) {
  if (remains->is_free()) return;
  const Remains *const mine = remains.get();
  bury(std::move(remains));
  const Uncaptured uncaptured;
  const int64_t start = now_ms();
  const std::function<bool()> runs = any_runs.load();
  for (free_buried(runs); waits && is_buried(mine) && !runs() && now_ms() - start <= kPatienceMs; free_buried(runs)) {
    const timespec nap{0, 1000000};
    nanosleep(&nap, nullptr);
  }
  if (any_buried()) have_watched();
}

void dispose(std::unique_ptr<PinnedMemory> pinned) {
  if (pinned == nullptr) return;
  auto remains = std::make_unique<Remains>();
  remains->pinned.push_back(std::move(pinned));
  dispose(std::move(remains));
}

void dispose_later(std::unique_ptr<Remains> remains) {
  bury(std::move(remains));
  // The watcher may be freeing something, which waits for kernels, and these for the caller.
  std::thread thread;
  const Status started = start_thread(have_watched, &thread);
  if (started.ok())
    thread.detach();
  else
    log(LogLevel::kWarn, "%s", started.text().c_str());
}

bool any_buried() {
  Buried &self = buried();
  const std::lock_guard<std::mutex> lock(self.mutex);
  return !self.all.empty();
}

void free_buried(const std::function<bool()> &runs) {
  const Uncaptured uncaptured;
  const std::unique_lock<std::shared_mutex> nobody_launches(launching(), std::try_to_lock);
  if (!nobody_launches.owns_lock() || runs()) return;
  RemainsList all = dig_up();
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto &one) { return one->free(); }), all.end());
  bury(std::move(all));
}

}  // namespace collc::cuda
