#include "wire/ucx_lock.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/clock.h"

namespace collc {
namespace {

std::atomic<bool> ucx_closed{false}, ucx_forked{false};

}  // namespace

struct UcxLock::State {
  std::recursive_mutex mutex;
  std::atomic<int> waiting{0};  // number of threads that wait for the lock
};

// A forked child gets another lock, because a thread that exists only in the parent may hold the parent's.
UcxLock::State &UcxLock::state() {
  static std::atomic<State *> current{nullptr};  // never destroyed, because threads may outlive it
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    current.store(nullptr, std::memory_order_relaxed);
    ucx_forked.store(true, std::memory_order_relaxed);
    ucx_closed.store(true, std::memory_order_relaxed);
  });
  static_cast<void>(registered);
  State *current_state = current.load(std::memory_order_acquire);
  if (current_state != nullptr) return *current_state;
  auto *const new_state = new State;
  if (current.compare_exchange_strong(current_state, new_state)) return *new_state;
  delete new_state;
  return *current_state;
}

UcxLock::UcxLock() : state_(state()) {
  state_.waiting.fetch_add(1);
  state_.mutex.lock();
  state_.waiting.fetch_sub(1);
}

// Lets waiting threads go first; otherwise a busy proxy thread would lock again before a waiting thread wakes up.
UcxLock::~UcxLock() {
  state_.mutex.unlock();
  if (state_.waiting.load(std::memory_order_relaxed) != 0) sched_yield();
}

bool UcxLock::is_closed() { return ucx_closed.load(std::memory_order_acquire); }

Status UcxLock::check() {
  if (!is_closed()) return {};
  return fail(ncclSystemError, "engine ucx: %s",
              ucx_forked.load(std::memory_order_relaxed) ? "not in a forked child of a process that has used this engine"
                                                         : "the process is ending");
}

void UcxLock::close(int64_t deadline_ms) {
  State &shared = state();
  shared.waiting.fetch_add(1);
  bool has_lock = shared.mutex.try_lock();
  for (; !has_lock && now_ms() < deadline_ms; has_lock = shared.mutex.try_lock()) poll(nullptr, 0, 1);
  shared.waiting.fetch_sub(1);
  ucx_closed.store(true, std::memory_order_release);
  if (has_lock) shared.mutex.unlock();
}

}  // namespace collc
