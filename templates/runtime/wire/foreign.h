// Serializes all calls into UCX, for the engine `ucx`.
#pragma once
#include "base/status.h"

namespace collc {

// Holds the lock while UCX is called, because UCX takes one thread at a time. The lock is recursive. over() is true once UCX
// must not be called any more: at exit(), when UCX may have been unloaded, and in a forked child of a process that has called
// UCX, because the child lacks UCX's threads.
class ForeignTurn {
 public:
  ForeignTurn();
  ~ForeignTurn();
  ForeignTurn(const ForeignTurn &) = delete;
  ForeignTurn &operator=(const ForeignTurn &) = delete;

  static bool over();
  // Returns the reason if over() is true.
  static Status check();
  // Forbids calls of UCX from now on. Waits for a running call, until the deadline at most.
  static void end(int64_t deadline_ms);

 private:
  struct Turns;
  static Turns &turns();

  Turns &turns_;
};

}  // namespace collc
