#include "communicator/turns.h"

#include <chrono>

namespace collc {

bool Turns::wait(uint64_t number, double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return next_ >= number; });
}

void Turns::pass(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number < next_) return;
  passed_.insert(number);
  while (passed_.erase(next_) != 0) ++next_;
  changed_.notify_all();
}

}  // namespace collc
