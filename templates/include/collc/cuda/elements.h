// Element types: which are integers, and how narrow floats are computed in f32.
#pragma once
#include "collc/cuda/device.h"

namespace collc::cuda {

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

// Signed integers run as unsigned ones; see Launch::flip.
template <class T>
constexpr bool kIsInteger = kSame<T, uint8_t> || kSame<T, uint32_t> || kSame<T, uint64_t>;

template <class T>
constexpr bool kIsFloat8 = kSame<T, E4m3> || kSame<T, E5m2>;

// Floats that are computed in f32.
template <class T>
constexpr bool kIsNarrow = kSame<T, Half> || kSame<T, Bfloat16> || kIsFloat8<T>;

// Floats of 8 bits: bits of the mantissa, bias of the exponent, and the first pattern that is not a finite number. E4m3 has
// no infinity and one NaN. Larger values become the largest finite one, as in CUDA's conversions.
template <class T>
struct Float8;
template <>
struct Float8<E4m3> {
  static constexpr uint32_t mantissa = 3, bias = 7, special = 0x7f;
};
template <>
struct Float8<E5m2> {
  static constexpr uint32_t mantissa = 2, bias = 15, special = 0x7c;
};

// Returns two floats of 8 bits, in the upper bytes of both halves of a word, as f16 values. E4M3 values are too small by 2^8,
// the difference of the biases; kHalfScale corrects it.
template <class T>
COLLC_DEVICE uint32_t as_halves(uint32_t upper) {
  if constexpr (Float8<T>::mantissa == 2) return upper;
  const uint32_t magnitude = upper >> 1 & 0x3f803f80u;
  const uint32_t nan = (magnitude + 0x00800080u) & 0x40004000u;  // makes the exponent of NaN all ones
  return (upper & 0x80008000u) | magnitude | nan;
}
template <class T>
constexpr float kHalfScale = Float8<T>::mantissa == 2 ? 1 : 256;
template <class T>
COLLC_DEVICE void widen_word(uint32_t word, float (&wide)[4]) {
  const uint32_t even = as_halves<T>(word << 8 & 0xff00ff00u), odd = as_halves<T>(word & 0xff00ff00u);
  wide[0] = to_float(Half{static_cast<uint16_t>(even)}) * kHalfScale<T>;
  wide[1] = to_float(Half{static_cast<uint16_t>(odd)}) * kHalfScale<T>;
  wide[2] = to_float(Half{static_cast<uint16_t>(even >> 16)}) * kHalfScale<T>;
  wide[3] = to_float(Half{static_cast<uint16_t>(odd >> 16)}) * kHalfScale<T>;
}
template <class T>
COLLC_DEVICE float widen_float8(T value) {
  float wide[4];
  widen_word<T>(value.bits, wide);
  return wide[0];
}
template <class T>
COLLC_DEVICE T narrow_float8(float value) {
  using F = Float8<T>;
  constexpr uint32_t shift = 23 - F::mantissa, one = 1, rebias = (127 - F::bias) << 23;
  constexpr uint32_t largest = ((F::special - 1) << shift) + rebias, smallest_normal = rebias + (one << 23);
  const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffu;
  const uint32_t limited = magnitude > largest ? largest : magnitude;
  const uint32_t normal = (limited - rebias + ((one << (shift - 1)) - 1) + (limited >> shift & 1)) >> shift;
  // Below the smallest normal number the distance between neighbors is fixed; floats around the anchor have the same
  // distance.
  constexpr uint32_t anchor = smallest_normal + (shift << 23);
  const uint32_t subnormal = to_bits(bits_to<float>(limited) + bits_to<float>(anchor)) - anchor;
  const uint32_t finite = limited < smallest_normal ? subnormal : normal;
  return T{static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : bits >> 31 << 7 | finite)};
}

// Narrow floats are computed in float. Its 24 bits of precision are more than twice theirs plus two, so rounding the result
// of a float operation once more gives the correctly rounded result.
template <class T>
struct Wide {
  using type = T;
  static COLLC_DEVICE T widen(T value) { return value; }
  static COLLC_DEVICE T narrow(T value) { return value; }
};
template <>
struct Wide<Half> {
  using type = float;
  static COLLC_DEVICE float widen(Half value) { return to_float(value); }
  static COLLC_DEVICE Half narrow(float value) { return to_half(value); }
};
template <>
struct Wide<Bfloat16> {
  using type = float;
  static COLLC_DEVICE float widen(Bfloat16 value) { return to_float(value); }
  static COLLC_DEVICE Bfloat16 narrow(float value) { return to_bfloat16(value); }
};

template <>
struct Wide<E4m3> {
  using type = float;
  static COLLC_DEVICE float widen(E4m3 value) { return widen_float8(value); }
  static COLLC_DEVICE E4m3 narrow(float value) { return narrow_float8<E4m3>(value); }
};
template <>
struct Wide<E5m2> {
  using type = float;
  static COLLC_DEVICE float widen(E5m2 value) { return widen_float8(value); }
  static COLLC_DEVICE E5m2 narrow(float value) { return narrow_float8<E5m2>(value); }
};

}  // namespace collc::cuda
