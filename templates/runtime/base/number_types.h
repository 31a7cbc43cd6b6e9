// Arithmetic of NCCL's data types on the CPU. Branch-free, so that compilers vectorize the loops.
//
// A NaN result has all bits of exponent and mantissa set and no sign, like PTX's canonical NaN. The types of 16 and 8 bits
// store every NaN in this form; f32 and f64 only in maxima and minima.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "nccl.h"

namespace collc {
namespace {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t select(bool condition, uint32_t yes, uint32_t no) { return condition ? yes : no; }

// Integers. Sums and products wrap, as on the GPU; unsigned arithmetic makes the overflow defined.
template <class T>
struct Integer {
  using Storage = T;
  using Value = T;
  static T load(T stored) { return stored; }
  static T store(T value) { return value; }
  static T add(T a, T b) { return static_cast<T>(Wide(a) + Wide(b)); }
  static T multiply(T a, T b) { return static_cast<T>(Wide(a) * Wide(b)); }
  static T divide(T a, uint32_t by) { return static_cast<T>(a / static_cast<SameSign>(by)); }

 private:
  // At least as wide as unsigned int, because uint16_t * uint16_t would be a signed product, whose overflow is undefined.
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using SameSign = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
};

template <class T>
struct Real {
  using Storage = T;
  using Value = T;
  static T load(T stored) { return stored; }
  static T store(T value) { return value; }
  static T add(T a, T b) { return a + b; }
  static T multiply(T a, T b) { return a * b; }
};

struct InFloat {
  using Value = float;
  static float add(float a, float b) { return a + b; }
  static float multiply(float a, float b) { return a * b; }
};

struct Bfloat16 : InFloat {
  using Storage = uint16_t;
  static float load(uint16_t stored) { return float_of(static_cast<uint32_t>(stored) << 16); }
  static uint16_t store(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<uint16_t>(select(nan, 0x7fff, rounded));
  }
};

// Formats of `Exponent` and `Mantissa` bits with a bias of 2^(Exponent-1)-1: f16 (5, 10), e5m2 (5, 2), e4m3 (4, 3; the
// "fn" variant without infinity, whose largest value is 448). Eight-bit formats saturate, as CUDA's conversions do.
template <class Bits, int Exponent, int Mantissa>
struct SmallFloat : InFloat {
  using Storage = Bits;

  static float load(Bits stored) {
    const uint32_t sign = static_cast<uint32_t>(stored >> (kBits - 1)) << 31;
    const uint32_t magnitude = stored & kMagnitude;
    // The float with the same exponent field is too small by a power of two. The product corrects it, also for subnormals.
    const uint32_t finite = bits_of(float_of(magnitude << kShift) * float_of((254u - kBias) << 23));
    const uint32_t special = 0x7f800000 | (magnitude << kShift);
    return float_of(sign | select(magnitude >= kFirstSpecial, special, finite));
  }

  static Bits store(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t sign = (bits >> 31) << (kBits - 1);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t limited = select(magnitude > kLargestFloat, kLargestFloat, magnitude);
    const uint32_t normal =
        (limited - ((127u - kBias) << 23) + ((1u << (kShift - 1)) - 1) + ((limited >> kShift) & 1)) >> kShift;
    // Below the smallest normal number the ulp is fixed. Adding a float with this ulp makes the FPU round.
    const uint32_t anchor = (127u - kBias + 1 + kShift) << 23;
    const uint32_t subnormal = bits_of(float_of(limited) + float_of(anchor)) - anchor;
    const uint32_t finite = select(limited < ((127u - kBias + 1) << 23), subnormal, normal);
    return static_cast<Bits>(select(magnitude > 0x7f800000, kMagnitude, sign | finite));
  }

 private:
  static constexpr int kBits = static_cast<int>(8 * sizeof(Bits));
  static_assert(1 + Exponent + Mantissa == kBits, "sign, exponent and mantissa fill the storage");
  static constexpr int kShift = 23 - Mantissa;
  static constexpr uint32_t kBias = (1u << (Exponent - 1)) - 1;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr bool kFinite = kBits == 8 && Exponent == 4;  // e4m3: no infinity, one NaN
  static constexpr uint32_t kInfinity = ((1u << Exponent) - 1) << Mantissa;
  static constexpr uint32_t kFirstSpecial = kFinite ? kMagnitude : kInfinity;
  // Larger values become this one: the largest finite value (8 bits), or 2^(bias+1), which rounds to infinity.
  static constexpr uint32_t kLargestFloat =
      kBits == 8 ? ((kFirstSpecial - 1) << kShift) + ((127u - kBias) << 23) : (127u + kBias + 1) << 23;
};

using Half = SmallFloat<uint16_t, 5, 10>;
using Fp8E5M2 = SmallFloat<uint8_t, 5, 2>;
using Fp8E4M3 = SmallFloat<uint8_t, 4, 3>;

inline bool is_float(ncclDataType_t type) { return type >= ncclFloat16; }

// Stores 1 / n as an element of a floating-point type. Rounds it as NCCL rounds the factor of an average: first to float
// (except for f64), then to the type.
inline void store_reciprocal(uint32_t n, ncclDataType_t type, void *to) {
  const double exact = 1.0 / n;
  const auto narrow = static_cast<float>(exact);
  const auto put = [to](auto value) { std::memcpy(to, &value, sizeof value); };
  switch (type) {
    case ncclFloat16:
      return put(Half::store(narrow));
    case ncclFloat32:
      return put(narrow);
    case ncclFloat64:
      return put(exact);
    case ncclBfloat16:
      return put(Bfloat16::store(narrow));
    case ncclFloat8e4m3:
      return put(Fp8E4M3::store(narrow));
    default:
      return put(Fp8E5M2::store(narrow));
  }
}

}  // namespace
}  // namespace collc
