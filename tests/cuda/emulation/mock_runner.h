// The thread of the mock driver that runs kernels: from the moment when they are launched, whatever the host does meanwhile.
// Host calls hold the gate, and kernels stand still until they have let go of it.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "emulator.h"
#include "mock_streams.h"

namespace mock {

// Asynchronous work of a device: a kernel, a copy or a fill.
struct Work {
  std::function<void()> body;  // of every thread
  uint32_t blocks = 1, threads = 1;
  size_t shared = 0;
  int device = 0;
  bool waits_in_queue = false;  // a wait of the stream itself: what is behind it in a hardware queue stands too
};

inline int setting(const char *name, int fallback) {
  const char *text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

class Runner {
 public:
  explicit Runner(emulation::Emulator &emulator) : emulator_(emulator) {
    emulation::Options options;
    options.seed = static_cast<uint64_t>(setting("MOCK_SEED", 1));
    options.resident = static_cast<uint32_t>(setting("MOCK_BLOCKS", 132));
    options.reaches_all = !rule("memory is opened");
    options.coarse = setting("MOCK_COARSE", 0) != 0;
    emulator_.begin(options);
  }

  // For calls of the host: kernels go on when it is gone.
  class Hold {
   public:
    explicit Hold(Runner &runner) : runner_(runner) {
      ++runner_.knocking_;
      lock_ = std::unique_lock<std::recursive_mutex>(runner_.gate_);
      --runner_.knocking_;
    }
    std::unique_lock<std::recursive_mutex> &lock() { return lock_; }

   private:
    Runner &runner_;
    std::unique_lock<std::recursive_mutex> lock_;
  };

  // The rest with the gate held. A launch on a stream of the emulator's own numbering; returns its number.
  uint64_t add(const Work &work, uint32_t stream, uint32_t queue, const Ids &after) {
    start();
    emulation::LaunchRequest request{stream, work.threads, work.shared, {}, {}, work.body};
    std::vector<uint32_t> &ids = block_ids_[stream];
    while (ids.size() < work.blocks) ids.push_back(emulator_.add_block_id());
    request.ids.assign(ids.begin(), ids.begin() + work.blocks);
    request.devices.assign(work.blocks, static_cast<uint32_t>(work.device));
    // Includes ended launches, because their writes are ordered only before work that waits for them.
    for (const uint64_t earlier : after)
      for (const auto *launches : {&open_, &ended_})
        if (const auto at = launches->find(earlier & ~kBegun); at != launches->end() && at->second.stream != stream)
          ((earlier & kBegun) != 0 ? request.behind : request.after).emplace_back(at->second.stream, at->second.place);
    request.queue = queue;
    request.holds_queue = work.waits_in_queue;
    request.number = ++last_;
    request.ended = [this, number = request.number, device = work.device] {
      ended_.emplace(number, open_.at(number));
      open_.erase(number);
      --busy_[device];
    };
    open_[last_] = {stream, ++lengths_[stream]};
    ++busy_[work.device];
    emulator_.reseed(static_cast<uint64_t>(setting("MOCK_SEED", 1)) + last_);
    emulator_.add(std::move(request));
    changed_.notify_all();
    return last_;
  }
  uint32_t add_stream() {
    const uint32_t made = emulator_.add_stream();
    block_ids_.resize(made + 1);
    lengths_.resize(made + 1);
    return made;
  }

  // Waits until launches have ended, or until all of some devices have. 0, or the error that the device has come to.
  int wait(Hold &hold, const Ids &launches) {
    hold_until(hold, [&] { return has_ended(launches); });
    return failed();
  }
  template <class Chosen>
  int wait_devices(Hold &hold, Chosen chosen) {
    hold_until(hold, [&] {
      for (const auto &[device, count] : busy_)
        if (count != 0 && chosen(device)) return false;
      return true;
    });
    for (uint32_t s = 0; s < lengths_.size() && open_.empty(); ++s) emulator_.observe(s);
    for (const auto &[number, place] : ended_) emulator_.observe(place.stream, place.place);
    if (open_.empty()) ended_.clear();
    return failed();
  }
  // Returns true if the launches have ended. Then their writes are ordered before the host.
  bool has_ended(const Ids &launches) {
    for (const uint64_t one : launches)
      if (open_.count(one & ~kBegun) != 0) return false;  // false for launches that have only begun; no caller asks for these
    for (const uint64_t one : launches)
      if (const auto at = ended_.find(one); at != ended_.end()) emulator_.observe(at->second.stream, at->second.place);
    return true;
  }
  int failed() const { return emulator_.failure().empty() ? 0 : kLaunchFailed; }

  static constexpr int kLaunchFailed = 719;

 private:
  struct Place {
    uint32_t stream, place;
  };

  // Kernels run while it waits: the gate may be held more than once by this thread.
  template <class Done>
  void hold_until(Hold &hold, Done done) {
    while (!done() && failed() == 0) changed_.wait_for(hold.lock(), std::chrono::milliseconds(100));
  }

  void start() {
    if (started_) return;
    started_ = true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() {
    std::unique_lock<std::recursive_mutex> lock(gate_);
    uint64_t idle_ns = 0;
    for (;;) {
      while (open_.empty() || failed() != 0) changed_.wait(lock);
      const size_t before = open_.size();
      const bool moved = emulator_.step();
      if (failed() != 0) {
        std::fprintf(stderr, "mock: %s\n", emulator_.failure().c_str());
        emulator_.drop();
        open_.clear();
        busy_.clear();
        changed_.notify_all();
        continue;
      }
      if (open_.size() != before) changed_.notify_all();
      lock.unlock();
      const uint64_t slept = moved ? 0 : nap(idle_);
      while (knocking_.load() != 0) sched_yield();
      lock.lock();
      if (moved) continue;
      idle_ = emulator_.poll(slept);
      idle_ns = idle_ <= 1 ? 0 : idle_ns + slept;
      if (idle_ns > static_cast<uint64_t>(setting("MOCK_PATIENCE_MS", 30000)) * 1000000) emulator_.give_up();
    }
  }

  static uint64_t nap(uint32_t idle) {
    timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    const timespec time{0, idle < 50 ? 20000 : 500000};
    nanosleep(&time, nullptr);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return static_cast<uint64_t>((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec);
  }

  emulation::Emulator &emulator_;
  std::recursive_mutex gate_;
  std::atomic<int> knocking_{0};
  std::condition_variable_any changed_;
  bool started_ = false;
  uint32_t idle_ = 0;
  uint64_t last_ = 0;
  std::map<uint64_t, Place> open_, ended_;  // launches that have not ended, and those that have
  std::map<int, uint32_t> busy_;  // by device
  std::vector<std::vector<uint32_t>> block_ids_;  // by stream
  std::vector<uint32_t> lengths_;
};

}  // namespace mock
