// The order in which parts of a communicator come about: that of the calls, which is the same on all ranks. Several of one
// parent may be begun at once, in a group or without blocking, each in a thread of its own, but the ranks exchange messages
// for one of them at a time.
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
  // Whether all earlier ones have passed, now or within so many seconds.
  bool wait(uint64_t number, double seconds);
  // Whoever has taken a turn passes it, whether its time has come or not; again does nothing.
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
