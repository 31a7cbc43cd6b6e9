#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "cuda/rank.h"
#include "cuda/deferred_frees.h"

namespace collc::cuda {
namespace {

constexpr long kPeriodNs = 5000000;
constexpr uint32_t kLooksPerPeerLook = 20;

struct Watcher {
  std::mutex mutex;
  std::vector<CudaRank *> ranks;
  bool running = false;
};

// A forked child has no such thread, and the parent's thread may have held the lock. So the child begins with a new watcher.
std::atomic<Watcher *> current{nullptr};

Watcher &watcher() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
  Watcher *known = current.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new Watcher;  // outlives every thread
  if (current.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

void run(Watcher &self) {
  const Uncaptured uncaptured;
  for (uint32_t round = 0;; ++round) {
    const timespec nap{0, kPeriodNs};
    nanosleep(&nap, nullptr);
    const std::lock_guard<std::mutex> lock(self.mutex);
    if (self.ranks.empty() && !has_pending()) {
      self.running = false;
      return;
    }
    for (CudaRank *rank : self.ranks) rank->look(round % kLooksPerPeerLook == 0);
    if (round % kLooksPerPeerLook != 0 || !has_pending()) continue;
    // Never to wait: aborts come this way. A graph may run at any time.
    free_pending([&self] {
      return std::any_of(self.ranks.begin(), self.ranks.end(),
                         [](CudaRank *rank) { return rank->async_calls()->has_graphs() || rank->async_calls()->runs(); });
    });
  }
}

}  // namespace

bool any_kernel_runs() {
  Watcher &self = watcher();
  const std::lock_guard<std::mutex> lock(self.mutex);
  return std::any_of(self.ranks.begin(), self.ranks.end(), [](CudaRank *rank) { return rank->async_calls()->runs(); });
}

Status watch(CudaRank *rank) {
  Watcher &self = watcher();
  {
    const std::lock_guard<std::mutex> lock(self.mutex);
    self.ranks.push_back(rank);
  }
  return keep_watching();
}

Status keep_watching() {
  Watcher &self = watcher();
  const std::lock_guard<std::mutex> lock(self.mutex);
  if (self.running) return {};
  // Signals of the application are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    std::thread(run, std::ref(self)).detach();
    self.running = true;
  } catch (const std::system_error &error) {
    status = fail(ncclSystemError, "cannot start a thread: %s", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void unwatch(CudaRank *rank) {
  Watcher &self = watcher();
  const std::lock_guard<std::mutex> lock(self.mutex);
  self.ranks.erase(std::remove(self.ranks.begin(), self.ranks.end(), rank), self.ranks.end());
}

}  // namespace collc::cuda
