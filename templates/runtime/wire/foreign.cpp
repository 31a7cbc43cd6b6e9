#include "wire/foreign.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/clock.h"

namespace collc {
namespace {

std::atomic<bool> foreign_over{false}, foreign_forked{false};

}  // namespace

struct ForeignTurn::Turns {
  std::recursive_mutex mutex;
  std::atomic<int> waiting{0};  // threads
};

// A forked child has turns of its own: a thread that it does not have may hold its parent's.
ForeignTurn::Turns &ForeignTurn::turns() {
  static std::atomic<Turns *> current{nullptr};  // outlives every thread
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    current.store(nullptr, std::memory_order_relaxed);
    foreign_forked.store(true, std::memory_order_relaxed);
    foreign_over.store(true, std::memory_order_relaxed);
  });
  static_cast<void>(registered);
  Turns *known = current.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new Turns;
  if (current.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

ForeignTurn::ForeignTurn() : turns_(turns()) {
  turns_.waiting.fetch_add(1);
  turns_.mutex.lock();
  turns_.waiting.fetch_sub(1);
}

// A busy courier would take it again before anybody who waits wakes.
ForeignTurn::~ForeignTurn() {
  turns_.mutex.unlock();
  if (turns_.waiting.load(std::memory_order_relaxed) != 0) sched_yield();
}

bool ForeignTurn::over() { return foreign_over.load(std::memory_order_acquire); }

Status ForeignTurn::check() {
  if (!over()) return {};
  return fail(ncclSystemError, "engine ucx: %s",
              foreign_forked.load(std::memory_order_relaxed) ? "not in a forked child of a process that has used this engine"
                                                             : "the process is ending");
}

void ForeignTurn::end(int64_t deadline_ms) {
  Turns &all = turns();
  all.waiting.fetch_add(1);
  bool taken = all.mutex.try_lock();
  for (; !taken && now_ms() < deadline_ms; taken = all.mutex.try_lock()) poll(nullptr, 0, 1);
  all.waiting.fetch_sub(1);
  foreign_over.store(true, std::memory_order_release);
  if (taken) all.mutex.unlock();
}

}  // namespace collc
