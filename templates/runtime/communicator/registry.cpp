#include "communicator/registry.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/segment.h"

namespace collc {

// Written under the registry's lock: by its own thread, and while that does not use it by others.
struct KeptCommunicator {
  std::atomic<bool> used{false};
  ncclComm_t handle = nullptr;
  uint64_t state = 0;  // of the registry
  CommunicatorPtr communicator;
};

namespace {

// The number of forks between the process that loaded this library and this process. Inherited communicators belong to the
// parent.
std::atomic<uint32_t> forks{0};

struct Entry {
  CommunicatorPtr communicator;
  uint32_t forks;  // when it was made
};

// Outlives every thread.
struct Handles {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, Entry> entries;
  std::vector<KeptCommunicator *> kept;  // by threads; a forked child has only one of them
};
std::atomic<uint64_t> registry_state{0};  // changes with its entries, and in a forked child

// A fork waits for the lock. Otherwise a forked child could find it locked forever, by a thread that the child does not have. A
// thread that holds the lock waits for no other lock that a fork takes.
Handles &handles() {
  static auto *const only = new Handles;
  static const int registered = pthread_atfork([] { handles().mutex.lock(); }, [] { handles().mutex.unlock(); },
                                               [] {
                                                 forks.fetch_add(1, std::memory_order_relaxed);
                                                 registry_state.fetch_add(1, std::memory_order_relaxed);
                                                 handles().mutex.unlock();
                                               });
  if (registered != 0) throw std::bad_alloc();
  return *only;
}

// Marks are plain stores. Set before the first communicator is there.
std::atomic<bool> marks_are_plain{false};

// Then this thread sees a removal, or who removes sees the mark.
void mark(KeptCommunicator &kept, bool used) {
  if (!marks_are_plain.load(std::memory_order_relaxed)) return kept.used.store(used, std::memory_order_seq_cst);
  kept.used.store(used, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

bool is_current(const KeptCommunicator &kept) { return kept.state == registry_state.load(std::memory_order_seq_cst); }

// Between a change of the registry's state and a look at marks.
void settle() {
  if (!marks_are_plain.load(std::memory_order_relaxed)) return;
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0) == 0) return;
  // Forbidden since it was registered: no processor keeps a store to itself for that long.
  timespec rest{0, 1000000};
  while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
}

thread_local KeptCommunicator *kept_here = nullptr;  // a pointer, which no call has to construct
thread_local bool is_ending = false;  // what has a destructor is gone in this thread, but calls may still come

struct Keeper {
  KeptCommunicator *const kept = new KeptCommunicator;
  Keeper() { handles().kept.push_back(kept); }
  Keeper(const Keeper &) = delete;
  Keeper &operator=(const Keeper &) = delete;
  ~Keeper() {
    kept_here = nullptr;
    is_ending = true;
    {
      const std::lock_guard<std::mutex> lock(handles().mutex);
      std::vector<KeptCommunicator *> &all = handles().kept;
      all.erase(std::find(all.begin(), all.end(), kept));
    }
    delete kept;  // which may be the last to hold its communicator
  }
};

// Under the lock, as the next one: what ends with the result must not end there.
CommunicatorPtr let_go(KeptCommunicator &kept) {
  kept.handle = nullptr;
  return std::move(kept.communicator);
}

Status find_entry(ncclComm_t handle, Entry **found) {
  if (handle == nullptr) return fail(ncclInvalidArgument, "the communicator is NULL");
  const auto entry = handles().entries.find(handle);
  if (entry == handles().entries.end()) return fail(ncclInvalidArgument, "the communicator does not exist (destroyed?)");
  if (entry->second.forks != forks.load(std::memory_order_relaxed))
    return fail(ncclInvalidUsage, "the communicator belongs to the parent of this forked process");
  *found = &entry->second;
  return {};
}

}  // namespace

ncclComm_t add_communicator(const CommunicatorPtr &communicator) {
  static const bool asked = [] {
    const bool plain = kFencesCost && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) == 0;
    if (plain) marks_are_plain.store(true, std::memory_order_relaxed);
    return true;
  }();
  static_cast<void>(asked);
  const std::lock_guard<std::mutex> lock(handles().mutex);
  auto *const handle = reinterpret_cast<ncclComm_t>(communicator.get());
  handles().entries[handle] = {communicator, forks.load(std::memory_order_relaxed)};
  registry_state.fetch_add(1, std::memory_order_release);
  return handle;
}

Status remove_communicator(ncclComm_t handle, CommunicatorPtr *removed) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  Entry *entry = nullptr;
  COLLC_RETURN_IF_FAILED(find_entry(handle, &entry));
  *removed = std::move(entry->communicator);
  handles().entries.erase(handle);
  registry_state.fetch_add(1, std::memory_order_seq_cst);
  const auto is_kept = [handle](const KeptCommunicator *kept) { return kept->handle == handle; };
  const std::vector<KeptCommunicator *> &all = handles().kept;
  if (std::any_of(all.begin(), all.end(), [&](auto *kept) { return kept != kept_here && is_kept(kept); })) settle();
  for (KeptCommunicator *kept : all) {
    if (!is_kept(kept) || kept->used.load(std::memory_order_seq_cst)) continue;
    let_go(*kept);  // `removed` is left
  }
  return {};
}

Status Lookup::find(ncclComm_t handle) {
  KeptCommunicator *const kept = kept_here;
  if (kept == nullptr || handle == nullptr) return find_in_registry(handle, kept == nullptr);
  // A call within another one (of a profiler's plugin) leaves the end of the use to that.
  const bool within = kept->used.load(std::memory_order_relaxed);
  if (!within) mark(*kept, true);
  if (is_current(*kept) && kept->handle == handle) {
    found_ = &kept->communicator;
    if (!within) kept_ = kept;
    return {};
  }
  if (!within) mark(*kept, false);
  return find_in_registry(handle, !within);
}

Status Lookup::find_in_registry(ncclComm_t handle, bool keep) {
  CommunicatorPtr before;  // ends without the lock
  const std::lock_guard<std::mutex> lock(handles().mutex);
  // Also if nothing is found: the thread that removed it may have seen the mark that find() set for a moment.
  if (keep && kept_here != nullptr) before = let_go(*kept_here);
  Entry *entry = nullptr;
  COLLC_RETURN_IF_FAILED(find_entry(handle, &entry));
  if (!keep || is_ending) {
    own_ = entry->communicator;
    return {};
  }
  static thread_local const Keeper keeper;
  kept_here = kept_ = keeper.kept;
  kept_->communicator = entry->communicator;
  kept_->handle = handle;
  kept_->state = registry_state.load(std::memory_order_relaxed);
  kept_->used.store(true, std::memory_order_relaxed);
  found_ = &kept_->communicator;
  return {};
}

void Lookup::end() {
  mark(*kept_, false);
  if (is_current(*kept_)) return;
  CommunicatorPtr before;  // ends without the lock
  const std::lock_guard<std::mutex> lock(handles().mutex);
  before = let_go(*kept_);
}

}  // namespace collc
