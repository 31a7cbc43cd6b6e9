// Libraries of others that engines call.
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
  // Why it is over, if it is. `engine`: for whom.
  static Status check(const char *engine);
  // From now on, nothing calls them. Waits for a call that is under way, but not for one that does not return.
  static void end();

 private:
  struct Turns;
  static Turns &turns();

  Turns &turns_;
};

}  // namespace collc
