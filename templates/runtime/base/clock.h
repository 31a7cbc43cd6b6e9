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

inline int64_t now_us() { return static_cast<int64_t>(now_ns() / 1000); }

inline int64_t now_ms() { return static_cast<int64_t>(now_ns() / 1000000); }

}  // namespace collc
