// Readings of the monotonic clock and of the CPU's tick counter. Any thread may call these functions; none blocks.
#pragma once
#include <time.h>

#include <cstdint>

namespace collc {

inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

// Returns a counter that runs at a constant rate and is the same for all cores of a machine. Its unit depends on the CPU; two
// readings of it and of now_ns() give the unit. The start of a call is recorded in ticks, because reading the clock takes ten
// times as long.
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

// Returns the number of ticks in a nanosecond. The first call of a process measures it and spins for 0.2 ms.
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
