// Liveness marks in shared memory: they show other processes whether the process that acquired a mark still runs.
//
// The kernel maintains them. Each process runs an idle thread whose list of robust futexes (set_robust_list(2)) contains the
// marks that the process has acquired. The thread ends only with its process. However the process ends, the kernel then sets
// a bit in every word on the list. Checking a mark takes one load. Descriptors, process ids and file locks are not involved,
// so closed descriptors, forks and containers do not matter: a forked child has no such thread, and its parent's marks remain
// the parent's. A process that executes another program counts as ended; a stopped process does not.
//
// Any thread may call acquire() and release(); acquire() may start a thread and waits until it runs.
#pragma once
#include <linux/futex.h>

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace collc {

// Lies in shared memory, initially zero. Part of the kernel's list while a process owns it.
struct LivenessMark {
  robust_list entry;             // in the owner thread's list; its address is meaningful in the owner's process only
  std::atomic<uint32_t> owner_tid;  // 0: no owner; else its thread id, with FUTEX_OWNER_DIED once it has ended
};

// Makes this process the owner of the mark until release() or the end of the process. If the mark has an owner already, sets
// `taken` and changes nothing.
Status acquire(LivenessMark &mark, bool *taken);
// Call before the memory is unmapped. Does nothing in a forked child.
void release(LivenessMark &mark);
// Returns whether the owner's process has ended without releasing the mark.
inline bool has_ended(const LivenessMark &mark) {
  return (mark.owner_tid.load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0;
}

}  // namespace collc
