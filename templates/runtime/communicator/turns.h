// The order of the parts of a communicator: the order of the calls that make them, which is the same on all ranks. Several
// parts of one parent may be begun at once, in a group or without blocking, each in a separate thread. But the ranks exchange
// messages for one part at a time.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace collc {

class Turns {
 public:
  uint64_t take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_++;
  }
  // Returns true if all earlier turns have passed, now or within `seconds`.
  bool wait(uint64_t number, double seconds);
  // Passes a turn that was taken, also before its time. A second time it does nothing.
  void pass(uint64_t number);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t taken_ = 0, next_ = 0;
  std::set<uint64_t> passed_;  // before their time
};

// One of them, passed on at the latest when nothing holds it any more, which may be after the end of the communicator.
class Turn {
 public:
  explicit Turn(std::shared_ptr<Turns> turns) : turns_(std::move(turns)), number_(turns_->take()) {}
  ~Turn() { pass(); }
  Turn(const Turn &) = delete;
  Turn &operator=(const Turn &) = delete;
  bool wait(double seconds) { return turns_->wait(number_, seconds); }
  void pass() { turns_->pass(number_); }

 private:
  const std::shared_ptr<Turns> turns_;
  const uint64_t number_;
};

}  // namespace collc
