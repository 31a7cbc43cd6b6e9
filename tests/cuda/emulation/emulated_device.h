// The device verbs of collc/cuda/device.h on the emulator. A warp has 8 lanes, so that small blocks have several warps. Flags of LL
// have 6 bits, so that they repeat after 64 chunks, unless COLLC_LL_FLAGS gives the flags that proxies expect. With COLLC_PRE_VOLTA
// the verbs are Pascal's, and the lanes of a warp run in lockstep.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator.h"
#include "planted.h"

#define COLLC_EMULATED_MULTIMEM "emulated_multimem.h"  // in the place of multimem.h's verbs

#define COLLC_DEVICE inline
#define COLLC_DEVICE_CALLED inline
#define COLLC_FUNCTION inline
#define COLLC_KERNEL(threads) void
#define COLLC_KERNEL_ARGUMENT(type) const type &

namespace collc::cuda {

constexpr uint32_t kWarp = emulation::kLanes;
constexpr uint32_t kSpinsPerLook = 1;

struct alignas(16) Pack {
  uint32_t word[4];
};
struct alignas(8) Duo {
  uint32_t word[2];
};
struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

inline uint32_t thread_index() { return emulation::emulator().current()->thread; }
inline uint32_t thread_count() { return static_cast<uint32_t>(emulation::emulator().current()->block->fibers.size()); }
inline uint32_t block_index() { return emulation::emulator().current()->block->index; }
inline char *shared_memory() { return emulation::emulator().current()->block->shared.data(); }

inline uint64_t flag_poll(const uint64_t *flag) { return emulation::emulator().relaxed_load(flag); }
inline void free_slot(uint64_t *flag, uint64_t value) { emulation::emulator().free_slot(flag, value); }
#if defined(COLLC_PRE_VOLTA)
inline void flag_acquire(const uint64_t *) { emulation::emulator().fence(); }
inline void flag_store(uint64_t *flag, uint64_t value) {
  emulation::emulator().fence();
  emulation::emulator().relaxed_store(flag, value);
}
#else
inline void flag_acquire(const uint64_t *) { emulation::emulator().acquire(); }
inline void flag_store(uint64_t *flag, uint64_t value) { emulation::emulator().release(flag, value, true); }
#endif

inline void tell_bytes(uint64_t *word, uint64_t value) { emulation::emulator().relaxed_store(word, value); }

inline void barrier() { emulation::emulator().barrier(false); }
inline bool barrier_or(bool mine) { return emulation::emulator().barrier(mine); }

inline uint32_t host_load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void host_store(uint32_t *word, uint32_t value) { emulation::emulator().host_write(word, value); }

inline void backoff(uint32_t) { emulation::emulator().park(); }
inline uint64_t look_mark() { return emulation::emulator().stores(); }
inline void backoff_since(uint64_t mark, uint32_t) { emulation::emulator().park_since(mark); }
inline uint64_t clock_ns() { return emulation::emulator().now(); }

#if defined(COLLC_COUNTERS)
constexpr uint32_t kTallyBytes = emulation::kOwnShared;
// Ten in a nanosecond, so that who takes one for the other is found out.
inline uint64_t ticks() { return 10 * emulation::emulator().now(); }
inline char *tally_memory() {
  std::vector<char> &shared = emulation::emulator().current()->block->shared;
  return shared.data() + shared.size() - kTallyBytes;
}
#endif

template <class T>
T load(const T *from) {
  T value;
  emulation::emulator().read(from, &value, sizeof(T));
  return value;
}
template <class T>
void store(T *to, const T &value) {
  emulation::emulator().write(to, &value, sizeof(T));
}

#if !defined(COLLC_LL_FLAGS)
#define COLLC_LL_FLAGS 63
#endif
constexpr uint32_t kLLFlags = COLLC_LL_FLAGS;
template <uint32_t N>
uint32_t ll_load(const Pack *const (&from)[N], const uint32_t (&flag)[N], Duo (&data)[N]) {
  const void *lines[N];
  uint32_t words[N][2];
  for (uint32_t k = 0; k < N; ++k) lines[k] = from[k];
  const uint32_t there = emulation::emulator().ll_read(N, lines, flag, words);
  for (uint32_t k = 0; k < N; ++k) data[k] = Duo{{words[k][0], words[k][1]}};
  return there;
}
inline void ll_store(Pack *to, const Duo &data, uint32_t flag) { emulation::emulator().ll_write(to, data.word, flag); }

constexpr uint32_t kLineLanes = 8;
template <uint32_t N>
bool ll128_load(const Pack *lines, uint64_t flag, Pack (&value)[N]) {
  char *memory = const_cast<char *>(reinterpret_cast<const char *>(lines));
  emulation::WarpCall call{emulation::WarpCall::kLoad, memory, flag, N, reinterpret_cast<char *>(value), false};
  return emulation::emulator().warp(call);
}
template <uint32_t N>
void ll128_store(Pack *lines, const Pack (&value)[N]) {
  Pack mine[N];
  std::memcpy(mine, value, sizeof mine);
  emulation::WarpCall call{
      emulation::WarpCall::kStore, reinterpret_cast<char *>(lines), 0, N, reinterpret_cast<char *>(mine), false};
  emulation::emulator().warp(call);
}
inline bool warp_any(bool mine) {
  emulation::WarpCall call{emulation::WarpCall::kAny, nullptr, 0, 0, nullptr, mine};
  return emulation::emulator().warp(call);
}

template <class To, class From>
To reinterpret(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}
template <class T>
T bits_to(uint32_t bits) {
  return reinterpret<T>(bits);
}
template <class T>
T bits_to(uint64_t bits) {
  return reinterpret<T>(bits);
}
inline uint32_t to_bits(uint32_t value) { return value; }
inline uint32_t to_bits(float value) { return reinterpret<uint32_t>(value); }
inline uint64_t to_bits(uint64_t value) { return value; }
inline uint64_t to_bits(double value) { return reinterpret<uint64_t>(value); }

inline uint32_t spread_signs(uint32_t word) {
  uint32_t spread = 0;
  for (uint32_t byte = 0; byte < 4; ++byte)
    if (word >> (8 * byte) & 0x80) spread |= 0xffu << (8 * byte);
  return spread;
}

// maximumNumber and minimumNumber of IEEE 754-2019; of two NaN the one of all bits but the sign's.
template <class F>
F extreme(F a, F b, bool largest) {
  if (a != a && b != b) return bits_to<F>(static_cast<decltype(to_bits(a))>(~decltype(to_bits(a)){0} >> 1));
  if (a != a || b != b) return a != a ? b : a;
  if (a == 0 && b == 0) return std::signbit(a) == largest ? b : a;
  return (a < b) == largest ? b : a;
}
inline float larger(float a, float b) { return extreme(a, b, true); }
inline float smaller(float a, float b) { return extreme(a, b, false); }
inline double larger(double a, double b) { return extreme(a, b, true); }
inline double smaller(double a, double b) { return extreme(a, b, false); }

inline float to_float(Bfloat16 value) { return reinterpret<float>(static_cast<uint32_t>(value.bits) << 16); }
inline Bfloat16 to_bfloat16(float value) {
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

inline float to_float(Half value) {
  const int exponent = value.bits >> 10 & 31, mantissa = value.bits & 1023;
  float magnitude;
  if (exponent == 31)
    magnitude = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  else
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return value.bits & 0x8000 ? -magnitude : magnitude;
}
inline Half to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return {0x7fff};
  if (magnitude == 0) return {sign};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // The distance of neighbors: 11 bits below the leading one, not under the smallest subnormal.
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const float steps = std::nearbyint(std::ldexp(magnitude, -unit));
  // Counting steps in the encoding: subnormals start at 0, each binade of normals adds 1024.
  const int base = (unit + 24) * 1024;
  return {static_cast<uint16_t>(sign | static_cast<uint16_t>(base + static_cast<int>(steps)))};
}

}  // namespace collc::cuda
