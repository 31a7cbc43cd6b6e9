// How long a load of a cache line takes that another core has just written: what tells how far apart two cores are.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace collc {

// From one such line to the next, on pages of their own: processors fetch lines beside those that are used, and a line that has
// come so tells nothing.
constexpr uint64_t kProbeRoom = 256;

// A single load may have waited for anything: of so many in a row the least counts.
constexpr uint32_t kLoads = 4;

// Nanoseconds that such a load takes more than one of a line in the own cache: near cores are far apart from the first on, far ones
// near up to the second. `collc tune --machine` has the first one too.
constexpr double kFarLoad = 90, kNearLoad = 65;

// Up to so many nanoseconds more than one of a line in the own cache: the line stood there, and had not just been written elsewhere.
constexpr double kOwnLoad = 15;

// Ticks of a load of a line; 0 where that cannot be timed.
inline uint64_t time_load(const std::atomic<uint64_t> &line) {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
  const uint64_t begin = now_ticks();
  __builtin_ia32_lfence();
  static_cast<void>(line.load(std::memory_order_relaxed));
  __builtin_ia32_lfence();
  return std::max<uint64_t>(1, now_ticks() - begin);
#else
  static_cast<void>(line);
  return 0;
#endif
}

// The same of a line that stands in the core's own cache: the least of some.
inline uint64_t time_own_load() {
  const std::atomic<uint64_t> line{0};
  uint64_t least = time_load(line);
  for (int i = 0; i < 32; ++i) least = std::min(least, time_load(line));
  return least;
}

}  // namespace collc
