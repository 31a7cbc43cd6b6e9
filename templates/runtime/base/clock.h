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

inline int64_t now_us() { return static_cast<int64_t>(now_ns() / 1000); }

inline int64_t now_ms() { return static_cast<int64_t>(now_ns() / 1000000); }

}  // namespace collc
