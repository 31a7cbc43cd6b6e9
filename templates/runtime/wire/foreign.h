// Libraries of others that engines call.
#pragma once
#include <mutex>

namespace collc {

// Held while one is called: some of them take one thread at a time. `over()` is true when the process exits and they may have
// been taken down.
class ForeignTurn {
 public:
  ForeignTurn();
  static bool over();
  // From now on, nothing calls them.
  static void end();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

}  // namespace collc
