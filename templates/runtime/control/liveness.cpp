#include "control/liveness.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace collc {
namespace {

// The kernel follows a list no further than ROBUST_LIST_LIMIT (2048) places.
constexpr size_t kMostHeld = 1024;

// The kernel may read these at any moment, so each change is one store.
void link(robust_list &from, robust_list *to) { __atomic_store_n(&from.next, to, __ATOMIC_RELEASE); }

// What the kernel knows of one keeper. In shared memory like the places themselves, though nobody else maps it: private
// memory of a process that is killed for want of memory may be gone before its threads are.
struct KeeperPage {
  robust_list_head head;
};

// A thread that lives as long as its process, while it holds something. Guarded by the mutex of Keepers.
struct Keeper {
  KeeperPage *page = nullptr;
  std::vector<Life *> held;  // in the order of the kernel's list
  uint32_t thread = 0;       // 0: none runs
  int error = 0;             // why the kernel has refused its list
  bool awaited = false;      // who starts it will add something

  void add(Life &life);
  void remove(std::vector<Life *>::iterator at);
};

// Killed at any point, the kernel finds the word on the list, or pending, or not yet held.
void Keeper::add(Life &life) {
  robust_list_head &head = page->head;
  __atomic_store_n(&head.list_op_pending, &life.place, __ATOMIC_RELEASE);
  life.holder.store(thread, std::memory_order_seq_cst);
  link(life.place, head.list.next);
  link(head.list, &life.place);
  held.insert(held.begin(), &life);
  __atomic_store_n(&head.list_op_pending, nullptr, __ATOMIC_RELEASE);
}

void Keeper::remove(std::vector<Life *>::iterator at) {
  robust_list &before = at == held.begin() ? page->head.list : at[-1]->place;
  (*at)->holder.store(0, std::memory_order_seq_cst);
  link(before, (*at)->place.next);
  held.erase(at);
}

// All keepers of a process. A forked child begins with none, and leaves those that it has inherited alone.
struct Keepers {
  std::mutex starting;  // taken before `mutex`: one keeper starts at a time
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Keeper *> all;  // never freed: the kernel may look at them to the end
};

std::atomic<Keepers *> current{nullptr};

Status keepers(Keepers **found) {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) return fail_errno("cannot prepare for forks", registered);
  Keepers *known = current.load(std::memory_order_acquire);
  if (known == nullptr) {
    auto *const made = new Keepers;
    if (current.compare_exchange_strong(known, made))
      known = made;
    else
      delete made;
  }
  *found = known;
  return {};
}

void keep(Keepers &all, Keeper &self) {
  std::unique_lock<std::mutex> lock(all.mutex);
  if (syscall(SYS_set_robust_list, &self.page->head, sizeof self.page->head) != 0) self.error = errno;
  self.thread = static_cast<uint32_t>(syscall(SYS_gettid));
  all.changed.notify_all();
  while (self.awaited || !self.held.empty()) all.changed.wait(lock);
  syscall(SYS_set_robust_list, nullptr, sizeof self.page->head);
  self.thread = 0;
}

Status make_page(KeeperPage **page) {
  void *const at = mmap(nullptr, sizeof(KeeperPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return fail_errno("no memory for the sign of life of this process", errno);
  madvise(at, sizeof(KeeperPage), MADV_DONTFORK);
  *page = static_cast<KeeperPage *>(at);
  robust_list_head &head = (*page)->head;
  head.list.next = &head.list;
  head.futex_offset = static_cast<long>(offsetof(Life, holder)) - static_cast<long>(offsetof(Life, place));
  return {};
}

// A keeper that does not run yet; called with both locks held.
Status start(Keepers &all, std::unique_lock<std::mutex> &lock, Keeper **started) {
  const auto rests = [](const Keeper *keeper) { return keeper->thread == 0; };
  auto found = std::find_if(all.all.begin(), all.all.end(), rests);
  if (found == all.all.end()) {
    KeeperPage *page = nullptr;
    COLLC_RETURN_IF_FAILED(make_page(&page));
    found = all.all.insert(found, new Keeper);
    (*found)->page = page;
  }
  Keeper &keeper = **found;
  keeper.awaited = true;
  keeper.error = 0;
  // Signals of the application are for its own threads.
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  Status status;
  try {
    std::thread(keep, std::ref(all), std::ref(keeper)).detach();
    while (keeper.thread == 0) all.changed.wait(lock);
    if (keeper.error != 0)
      status = fail_errno("this system cannot tell others when a process ends (set_robust_list)", keeper.error);
  } catch (const std::system_error &error) {
    status = fail(ncclSystemError, "cannot start the thread that shows that this process lives: %s", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) {
    keeper.awaited = false;
    all.changed.notify_all();
  }
  *started = &keeper;
  return status;
}

}  // namespace

Status hold(Life &life, bool *taken) {
  Keepers *all = nullptr;
  COLLC_RETURN_IF_FAILED(keepers(&all));
  const std::lock_guard<std::mutex> alone(all->starting);
  std::unique_lock<std::mutex> lock(all->mutex);
  *taken = life.holder.load(std::memory_order_acquire) != 0;
  if (*taken) return {};
  const auto has_room = [](const Keeper *one) { return !one->held.empty() && one->held.size() < kMostHeld; };
  const auto found = std::find_if(all->all.begin(), all->all.end(), has_room);
  Keeper *keeper = nullptr;
  if (found != all->all.end())
    keeper = *found;
  else
    COLLC_RETURN_IF_FAILED(start(*all, lock, &keeper));
  keeper->add(life);
  keeper->awaited = false;
  return {};
}

void release(Life &life) {
  Keepers *const all = current.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  for (Keeper *keeper : all->all) {
    const auto found = std::find(keeper->held.begin(), keeper->held.end(), &life);
    if (found == keeper->held.end()) continue;
    keeper->remove(found);
    all->changed.notify_all();
    return;
  }
}

}  // namespace collc
