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

// The kernel follows at most ROBUST_LIST_LIMIT (2048) entries of a list.
constexpr size_t kMaxMarks = 1024;

// The kernel may read these at any moment, so each change is one store.
void link(robust_list &from, robust_list *to) { __atomic_store_n(&from.next, to, __ATOMIC_RELEASE); }

// The list head of one owner thread. It lies in shared memory like the entries, although no other process maps it: when the
// kernel kills a process that runs out of memory, it may reclaim private memory before the threads end.
struct RobustListPage {
  robust_list_head head;
};

// A thread that owns marks. It runs until it owns no mark any more or its process ends. Guarded by OwnerThreads::mutex.
struct OwnerThread {
  RobustListPage *page = nullptr;
  std::vector<LivenessMark *> marks;  // in the order of the kernel's list
  uint32_t thread = 0;       // 0: not running
  int error = 0;             // errno if the kernel refused the list
  bool reserved = false;      // the thread that starts it is about to add a mark

  void add(LivenessMark &mark);
  void remove(std::vector<LivenessMark *>::iterator at);
};

// If the process is killed at any point, the kernel finds the mark on the list or pending, or the mark has no owner yet.
void OwnerThread::add(LivenessMark &mark) {
  robust_list_head &head = page->head;
  __atomic_store_n(&head.list_op_pending, &mark.entry, __ATOMIC_RELEASE);
  mark.owner_tid.store(thread, std::memory_order_seq_cst);
  link(mark.entry, head.list.next);
  link(head.list, &mark.entry);
  marks.insert(marks.begin(), &mark);
  __atomic_store_n(&head.list_op_pending, nullptr, __ATOMIC_RELEASE);
}

void OwnerThread::remove(std::vector<LivenessMark *>::iterator at) {
  robust_list &before = at == marks.begin() ? page->head.list : at[-1]->entry;
  (*at)->owner_tid.store(0, std::memory_order_seq_cst);
  link(before, (*at)->entry.next);
  marks.erase(at);
}

// All owner threads of a process. A forked child starts with none and ignores the inherited ones.
struct OwnerThreads {
  std::mutex starting;  // locked before `mutex`: one thread starts at a time
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<OwnerThread *> all;  // never freed, because the kernel may read them until the process ends
};

std::atomic<OwnerThreads *> current_threads{nullptr};

Status owner_threads(OwnerThreads **found) {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_threads.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) return fail_errno("cannot prepare for forks", registered);
  OwnerThreads *known = current_threads.load(std::memory_order_acquire);
  if (known == nullptr) {
    auto *const made = new OwnerThreads;
    if (current_threads.compare_exchange_strong(known, made))
      known = made;
    else
      delete made;
  }
  *found = known;
  return {};
}

void run_owner(OwnerThreads &all, OwnerThread &self) {
  std::unique_lock<std::mutex> lock(all.mutex);
  if (syscall(SYS_set_robust_list, &self.page->head, sizeof self.page->head) != 0) self.error = errno;
  self.thread = static_cast<uint32_t>(syscall(SYS_gettid));
  all.changed.notify_all();
  while (self.reserved || !self.marks.empty()) all.changed.wait(lock);
  syscall(SYS_set_robust_list, nullptr, sizeof self.page->head);
  self.thread = 0;
}

Status make_page(RobustListPage **page) {
  void *const at = mmap(nullptr, sizeof(RobustListPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return fail_errno("no memory to show other ranks that this process lives", errno);
  madvise(at, sizeof(RobustListPage), MADV_DONTFORK);
  *page = static_cast<RobustListPage *>(at);
  robust_list_head &head = (*page)->head;
  head.list.next = &head.list;
  head.futex_offset = static_cast<long>(offsetof(LivenessMark, owner_tid)) - static_cast<long>(offsetof(LivenessMark, entry));
  return {};
}

// Starts an owner thread. The caller holds both locks.
Status start(OwnerThreads &all, std::unique_lock<std::mutex> &lock, OwnerThread **started) {
  const auto is_idle = [](const OwnerThread *owner) { return owner->thread == 0; };
  auto found = std::find_if(all.all.begin(), all.all.end(), is_idle);
  if (found == all.all.end()) {
    RobustListPage *page = nullptr;
    COLLC_RETURN_IF_FAILED(make_page(&page));
    found = all.all.insert(found, new OwnerThread);
    (*found)->page = page;
  }
  OwnerThread &owner = **found;
  owner.reserved = true;
  owner.error = 0;
  // Signals must go to the application's threads, so the new thread blocks them.
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  Status status;
  try {
    std::thread(run_owner, std::ref(all), std::ref(owner)).detach();
    while (owner.thread == 0) all.changed.wait(lock);
    if (owner.error != 0)
      status = fail_errno("this system does not show other ranks the end of a process (set_robust_list)", owner.error);
  } catch (const std::system_error &error) {
    status = fail(ncclSystemError, "cannot start the thread that shows that this process lives: %s", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) {
    owner.reserved = false;
    all.changed.notify_all();
  }
  *started = &owner;
  return status;
}

}  // namespace

Status acquire(LivenessMark &mark, bool *taken) {
  OwnerThreads *all = nullptr;
  COLLC_RETURN_IF_FAILED(owner_threads(&all));
  const std::lock_guard<std::mutex> alone(all->starting);
  std::unique_lock<std::mutex> lock(all->mutex);
  *taken = mark.owner_tid.load(std::memory_order_acquire) != 0;
  if (*taken) return {};
  const auto has_room = [](const OwnerThread *one) { return !one->marks.empty() && one->marks.size() < kMaxMarks; };
  const auto found = std::find_if(all->all.begin(), all->all.end(), has_room);
  OwnerThread *owner = nullptr;
  if (found != all->all.end())
    owner = *found;
  else
    COLLC_RETURN_IF_FAILED(start(*all, lock, &owner));
  owner->add(mark);
  owner->reserved = false;
  return {};
}

void release(LivenessMark &mark) {
  OwnerThreads *const all = current_threads.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  for (OwnerThread *owner : all->all) {
    const auto found = std::find(owner->marks.begin(), owner->marks.end(), &mark);
    if (found == owner->marks.end()) continue;
    owner->remove(found);
    all->changed.notify_all();
    return;
  }
}

}  // namespace collc
