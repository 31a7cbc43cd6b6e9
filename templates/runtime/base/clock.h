// A clock that only goes forward.
#pragma once
#include <time.h>

#include <cstdint>

namespace collc {

inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

// A counter that all cores of a machine share and that runs at one speed, of whatever unit: a call's begin is noted in it,
// since reading the clock takes ten times as long. Two readings beside now_ns() give its unit.
inline uint64_t now_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return now_ns();
#endif
}

// How many ticks a nanosecond has; takes some of them at first.
inline double ticks_per_ns() {
  static const double found = [] {
    const uint64_t begin = now_ns(), ticks = now_ticks();
    uint64_t passed = 0;
    while (passed < 200000) passed = now_ns() - begin;
    return static_cast<double>(now_ticks() - ticks) / static_cast<double>(passed);
  }();
  return found;
}

inline int64_t now_us() { return static_cast<int64_t>(now_ns() / 1000); }

inline int64_t now_ms() { return static_cast<int64_t>(now_ns() / 1000000); }

}  // namespace collc
