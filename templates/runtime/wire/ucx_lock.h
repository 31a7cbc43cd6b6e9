// Serializes all calls into UCX, for the engine `ucx`.
#pragma once
#include "base/status.h"

namespace collc {

// Holds the lock while UCX is called, because UCX takes one thread at a time. The lock is recursive. is_closed() is true once
// UCX must not be called any more: at exit(), when UCX may have been unloaded, and in a forked child of a process that has
// called UCX, because the child lacks UCX's threads.
class UcxLock {
 public:
  UcxLock();
  ~UcxLock();
  UcxLock(const UcxLock &) = delete;
  UcxLock &operator=(const UcxLock &) = delete;

  static bool is_closed();
  // Returns the reason if is_closed() is true.
  static Status check();
  // Forbids calls of UCX from now on. Waits for a running call, until the deadline at most.
  static void close(int64_t deadline_ms);

 private:
  struct State;
  static State &state();

  State &state_;
};

}  // namespace collc
