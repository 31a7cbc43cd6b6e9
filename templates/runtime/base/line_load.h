// Times the load of a cache line that another core has just written. The time tells whether two cores share a cache (near) or
// not (far).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace collc {

// Bytes between two probe lines. Processors also fetch lines next to the lines that are used, and the load of a line that was
// fetched in this way says nothing.
constexpr uint64_t kProbeRoom = 256;

// A single load may be slow for any reason, so the minimum of this many consecutive loads counts.
constexpr uint32_t kLoads = 4;

// Nanoseconds that such a load takes longer than a load from the core's own cache. Two near cores become far from kFarLoad
// on, and two far cores become near up to kNearLoad. `collc tune --machine` uses kFarLoad, too.
constexpr double kFarLoad = 90, kNearLoad = 65;

// If a load takes at most this many nanoseconds longer than a load from the core's own cache, the line was in that cache and
// had not just been written by another core.
constexpr double kOwnLoad = 15;

// Returns the ticks that a load of a line takes, at least 1; 0 on CPUs where single loads cannot be timed (all but x86-64).
// The fences (lfence) keep the load between the two readings; the load itself is relaxed, because the value is not used.
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

// Returns the ticks of a load from the core's own cache: the minimum of 33 loads.
inline uint64_t time_own_load() {
  const std::atomic<uint64_t> line{0};
  uint64_t least = time_load(line);
  for (int i = 0; i < 32; ++i) least = std::min(least, time_load(line));
  return least;
}

}  // namespace collc
