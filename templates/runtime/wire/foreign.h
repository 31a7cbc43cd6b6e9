// UCX, which the engine `ucx` calls.
#pragma once
#include "base/status.h"

namespace collc {

// Held while one is called: some of them take one thread at a time. A thread may hold it more than once. `over()` is true when none is called any more:
// the process exits, and they may have been taken down, or it is a fork of one that has called them, whose threads it lacks.
class ForeignTurn {
 public:
  ForeignTurn();
  ~ForeignTurn();
  ForeignTurn(const ForeignTurn &) = delete;
  ForeignTurn &operator=(const ForeignTurn &) = delete;

  static bool over();
  // Why it is over, if it is.
  static Status check();
  // From now on, nothing calls them. Waits for a call that is under way, until then.
  static void end(int64_t deadline_ms);

 private:
  struct Turns;
  static Turns &turns();

  Turns &turns_;
};

}  // namespace collc
