// Whether the process that holds something in shared memory still runs, as others see it.
//
// It is the kernel that says so: each process keeps a thread that does nothing but live, with what it holds on its list of
// robust futexes (set_robust_list(2)). However that thread ends, which is with its process and not before, the kernel marks
// every word on the list. To look is one load. No descriptor, no number of a process and no lock of a file takes part, so
// closing descriptors, forks and containers change nothing: a forked child has no such thread, and what its parent holds
// remains the parent's. A process that executes another program has ended, one that is stopped has not.
#pragma once
#include <linux/futex.h>

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace collc {

// In shared memory, zero at first; part of the kernel's list while it is held.
struct Life {
  robust_list place;             // of the holder's thread; its address means something in the holder's process only
  std::atomic<uint32_t> holder;  // 0: nobody; else the thread's number, and FUTEX_OWNER_DIED once that has ended
};

// Holds it until release(), or until the process ends. False in `taken` if somebody has held it before.
Status hold(Life &life, bool *taken);
// Before its memory is unmapped. Nothing in a forked child.
void release(Life &life);
// True if its holder's process has ended without releasing it.
inline bool has_ended(const Life &life) { return (life.holder.load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0; }

}  // namespace collc
