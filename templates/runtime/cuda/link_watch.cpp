#include "cuda/link_watch.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "cuda/nvml.h"

namespace collc::cuda {
namespace {

constexpr long kLinkPeriodNs = 500000000;

struct LinkWatch {
  std::mutex mutex;
  std::vector<std::weak_ptr<WatchedLinks>> watched;
  bool running = false;
};

// A forked child has no such thread, and its parent's may have held the lock: it begins with a watch of its own.
std::atomic<LinkWatch *> current_links{nullptr};

LinkWatch &link_watch() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_links.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
  LinkWatch *known = current_links.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new LinkWatch;  // outlives every thread
  if (current_links.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

void look_at_links(WatchedLinks &one) {
  uint32_t up = 0;
  if (!count_links(one.device, one.links, &up)) return;
  one.up.store(up, std::memory_order_relaxed);
  one.missing.store(up < one.links.size() ? one.missing.load(std::memory_order_relaxed) + 1 : 0, std::memory_order_release);
}

void watch_all(LinkWatch &self) {
  for (;;) {
    const timespec nap{0, kLinkPeriodNs};
    nanosleep(&nap, nullptr);
    std::vector<std::shared_ptr<WatchedLinks>> held;
    {
      const std::lock_guard<std::mutex> lock(self.mutex);
      for (const std::weak_ptr<WatchedLinks> &one : self.watched)
        if (std::shared_ptr<WatchedLinks> kept = one.lock()) held.push_back(std::move(kept));
      self.watched.assign(held.begin(), held.end());
      if (held.empty()) {
        self.running = false;
        return;
      }
    }
    for (const std::shared_ptr<WatchedLinks> &one : held) look_at_links(*one);
  }
}

}  // namespace

std::shared_ptr<WatchedLinks> watch_links(DeviceNumber device, const std::vector<uint64_t> &buses) {
  auto made = std::make_shared<WatchedLinks>();
  made->device = device;
  if (!find_links(device, buses, &made->links) || made->links.empty()) return nullptr;
  LinkWatch &self = link_watch();
  const std::lock_guard<std::mutex> lock(self.mutex);
  self.watched.push_back(made);
  if (self.running) return made;
  // Signals of the application are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([&self] { watch_all(self); }).detach();
    self.running = true;
  } catch (const std::system_error &) {
    made = nullptr;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

}  // namespace collc::cuda
