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
  std::atomic<int> waiting{0};  // number of threads that wait for the lock
};

// A forked child gets another lock, because a thread that exists only in the parent may hold the parent's.
ForeignTurn::Turns &ForeignTurn::turns() {
  static std::atomic<Turns *> current{nullptr};  // never destroyed, because threads may outlive it
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

// Lets waiting threads go first; otherwise a busy proxy thread would lock again before a waiting thread wakes up.
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
