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
  // From now on, nothing calls them. Waits for a call that is under way, until then.
  static void end(int64_t deadline_ms);

 private:
  struct Turns;
  static Turns &turns();

  Turns &turns_;
};

// What the exit of the process does while these libraries are whole, once. It goes before what exists by now, and statics of a
// library may come to be whenever it is called for something new: end_before_foreign_again() says that one has been.
void end_before_foreign(void (*end)());
void end_before_foreign_again();

}  // namespace collc
