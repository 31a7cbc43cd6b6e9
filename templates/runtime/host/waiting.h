// The waits of a thread for other ranks: it spins if the wait is likely to be short and cores are free, then yields its core,
// then sleeps until a bell rings. A thread that waits for a rank on the same core yields at once.
//
// Owner: Service::run, for the time of a call. pause() spins once or yields; the caller sleeps.
#pragma once
#include <sched.h>

#include <cstdint>

#include "base/clock.h"

namespace collc {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One wait. `pause` returns false when it is time to sleep.
class Waiting {
 public:
  explicit Waiting(bool spins) : spin_us_(spins ? kSpinUs : 0) {}

  void progressed() { rounds_ = 0; }

  template <class SharesCore>
  bool pause(SharesCore shares_core) {
    if (rounds_++ == 0) {
      waited_us_ = 0;
      limit_us_ = spin_us_;
    }
    // The clock costs as much as a few pauses: short waits never read it.
    if (rounds_ % kLook == 0) {
      const int64_t now = now_us();
      if (rounds_ == kLook) start_us_ = now;
      waited_us_ = now - start_us_;
      if (waited_us_ < limit_us_ && shares_core()) limit_us_ = waited_us_;
    }
    if (waited_us_ < limit_us_) {
      cpu_relax();
      return true;
    }
    if (waited_us_ < limit_us_ + kYieldUs) {
      sched_yield();
      return true;
    }
    return false;
  }

  // Some rounds after its begin; once `pause` has returned false.
  int64_t since_us() const { return start_us_; }

 private:
  // Waking a thread on another idle core takes some 30 us. Spinning much longer pays where others want the core: what is
  // given away comes back after a time slice of milliseconds.
  static constexpr int64_t kSpinUs = 1000;
  static constexpr int64_t kYieldUs = 150;
  static constexpr uint32_t kLook = 16;  // rounds
  int64_t spin_us_;
  int64_t start_us_ = 0;
  int64_t waited_us_ = 0;
  int64_t limit_us_ = 0;  // of this wait's spinning
  uint32_t rounds_ = 0;
};

}  // namespace collc
