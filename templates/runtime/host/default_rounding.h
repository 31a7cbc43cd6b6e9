// Sets the thread's rounding to its default during a reduction: to nearest, with denormals. The caller's thread may flush
// denormals to zero (a program linked with -ffast-math) or round another way; all ranks must get the same bits.
#pragma once
#include "base/copy.h"

namespace collc {
// Each instruction set has its own copy, so that no CPU runs one that was built for another.
namespace {

class DefaultRounding {
#if defined(__SSE2__)
 public:
  DefaultRounding() : before_(_mm_getcsr()) {
    if ((before_ & kChanges) != 0) _mm_setcsr(before_ & ~kChanges);
  }
  ~DefaultRounding() {
    if ((before_ & kChanges) != 0) _mm_setcsr(before_);
  }

 private:
  static constexpr uint32_t kChanges = 0xe040;  // of MXCSR: flush to zero, both bits of the rounding, denormals are zero
  uint32_t before_;
#elif defined(__aarch64__)
 public:
  DefaultRounding() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    if ((before_ & kChanges) != 0) set(before_ & ~kChanges);
  }
  ~DefaultRounding() {
    if ((before_ & kChanges) != 0) set(before_);
  }

 private:
  static constexpr uint64_t kChanges = 0x1c00000;  // of FPCR: flush to zero, both bits of the rounding
  static void set(uint64_t value) { __asm__ volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
  uint64_t before_ = 0;
#else
 public:
  DefaultRounding() = default;
  ~DefaultRounding() {}
#endif
  DefaultRounding(const DefaultRounding &) = delete;
  DefaultRounding &operator=(const DefaultRounding &) = delete;
};

}  // namespace
}  // namespace collc
