#include "cuda/link_watch.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "cuda/nvml.h"

namespace collc::cuda {
namespace {

constexpr long kLinkPeriodNs = 500000000;

void look_at(WatchedLinks &one) {
  uint32_t up = 0;
  if (!count_links(one.device, one.links, &up)) return;
  one.up.store(up, std::memory_order_relaxed);
  one.missing.store(up < one.links.size() ? one.missing.load(std::memory_order_relaxed) + 1 : 0, std::memory_order_release);
}

void look_at(WatchedLanes &one) {
  const int64_t began = now_ms();
  uint32_t lanes = 0;
  if (!count_lanes(one.device, &lanes) || lanes == 0) return;
  one.latest.store(pack_lane_look(began, lanes), std::memory_order_release);
}

// The links or lanes of one GPU that one thread looks at, for each communicator with a rank on the GPU.
template <class Watched>
struct Watch {
  std::vector<std::weak_ptr<Watched>> watched;
  bool running = false;
};

struct Watches {
  std::mutex mutex;
  std::map<DeviceNumber, Watch<WatchedLinks>> links;
  std::map<DeviceNumber, Watch<WatchedLanes>> lanes;
};

// A forked child has no such threads, and a thread of its parent may have held the lock. So the child begins with new watches.
std::atomic<Watches *> current_watches{nullptr};

Watches &watches() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_watches.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
  Watches *known = current_watches.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new Watches;  // outlives every thread
  if (current_watches.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

template <class Watched>
void watch_all(std::mutex &mutex, Watch<Watched> &self) {
  for (;;) {
    const timespec nap{0, kLinkPeriodNs};
    nanosleep(&nap, nullptr);
    std::vector<std::shared_ptr<Watched>> held;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const std::weak_ptr<Watched> &one : self.watched)
        if (std::shared_ptr<Watched> kept = one.lock()) held.push_back(std::move(kept));
      self.watched.assign(held.begin(), held.end());
      if (held.empty()) {
        self.running = false;
        return;
      }
    }
    for (const std::shared_ptr<Watched> &one : held) look_at(*one);
  }
}

// Null where no thread starts.
template <class Watched>
std::shared_ptr<Watched> watched_from_now(const std::shared_ptr<Watched> &made,
                                          std::map<DeviceNumber, Watch<Watched>> Watches::*which) {
  Watches &all = watches();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Watch<Watched> &self = (all.*which)[made->device];  // stays where it is
  self.watched.push_back(made);
  if (self.running) return made;
  // Signals of the application are for its own threads.
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  try {
    std::thread([&all, &self] { watch_all(all.mutex, self); }).detach();
    self.running = true;
  } catch (const std::system_error &) {
    self.watched.pop_back();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return self.running ? made : nullptr;
}

}  // namespace

std::shared_ptr<WatchedLinks> watch_links(DeviceNumber device, const std::vector<uint64_t> &buses) {
  auto made = std::make_shared<WatchedLinks>();
  made->device = device;
  if (!find_links(device, buses, &made->links) || made->links.empty()) return nullptr;
  return watched_from_now(made, &Watches::links);
}

std::shared_ptr<WatchedLanes> watch_lanes(DeviceNumber device) {
  auto made = std::make_shared<WatchedLanes>();
  made->device = device;
  const int64_t began = now_ms();
  uint32_t lanes = 0;
  if (!count_lanes(device, &lanes) || lanes == 0) return nullptr;
  made->latest.store(pack_lane_look(began, lanes), std::memory_order_relaxed);
  return watched_from_now(made, &Watches::lanes);
}

}  // namespace collc::cuda
