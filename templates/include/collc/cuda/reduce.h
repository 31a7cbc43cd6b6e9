// Arithmetic on packs of 16 bytes and duos of 8. Every operation rounds once to the element type, left operand first, so that all
// targets and the interpreter get the same bits.
#pragma once
#include "collc/cuda/device.h"

namespace collc::cuda {

enum class Reduction : uint32_t { kSum, kProd, kMax, kMin };

template <class T>
struct IsFloating {
  static constexpr bool value = false;
};
template <>
struct IsFloating<float> {
  static constexpr bool value = true;
};
template <>
struct IsFloating<double> {
  static constexpr bool value = true;
};

// Narrow floats are computed in float: 24 bits of precision are more than twice theirs plus two, so rounding the exact
// float operation once more gives the correctly rounded result.
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

// Integers wrap: computed unsigned, where overflow is defined.
template <class T>
struct Unsigned {
  using type = T;
};
template <>
struct Unsigned<int8_t> {
  using type = uint32_t;
};
template <>
struct Unsigned<uint8_t> {
  using type = uint32_t;
};
template <>
struct Unsigned<int32_t> {
  using type = uint32_t;
};
template <>
struct Unsigned<int64_t> {
  using type = uint64_t;
};

struct Sum {
  static constexpr Reduction kind = Reduction::kSum;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b) {
    using U = typename Unsigned<W>::type;
    return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Prod {
  static constexpr Reduction kind = Reduction::kProd;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b) {
    using U = typename Unsigned<W>::type;
    return static_cast<W>(static_cast<U>(a) * static_cast<U>(b));
  }
};
// Of a number and a NaN, the number, as fmax and NCCL do.
struct Max {
  static constexpr Reduction kind = Reduction::kMax;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b) {
    if constexpr (IsFloating<W>::value) return larger(a, b);
    else return a < b ? b : a;
  }
};
struct Min {
  static constexpr Reduction kind = Reduction::kMin;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b) {
    if constexpr (IsFloating<W>::value) return smaller(a, b);
    else return b < a ? b : a;
  }
};

template <class T, class Op>
COLLC_DEVICE T combine(T a, T b) {
  return Wide<T>::narrow(Op::apply(Wide<T>::widen(a), Wide<T>::widen(b)));
}

template <class T>
constexpr uint32_t kPerWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;

// Elements of up to 4 bytes within a word: by shifts, so that nothing is indexed in memory.
template <class T>
COLLC_DEVICE T take(uint32_t word, uint32_t place) {
  if constexpr (sizeof(T) == 4) {
    return bits_to<T>(word);
  } else {
    const auto bits = word >> (8 * sizeof(T) * place);
    if constexpr (sizeof(T) == 2) return T{static_cast<uint16_t>(bits)};
    else return static_cast<T>(bits);
  }
}
template <class T>
COLLC_DEVICE uint32_t place_bits(T value, uint32_t place) {
  if constexpr (sizeof(T) == 4) return to_bits(value);
  else if constexpr (sizeof(T) == 2) return static_cast<uint32_t>(value.bits) << (16 * place);
  else return static_cast<uint32_t>(static_cast<uint8_t>(value)) << (8 * place);
}

template <class T, class Op>
COLLC_DEVICE uint32_t combine_word(uint32_t a, uint32_t b) {
  uint32_t result = 0;
#pragma unroll
  for (uint32_t i = 0; i < kPerWord<T>; ++i) result |= place_bits(combine<T, Op>(take<T>(a, i), take<T>(b, i)), i);
  return result;
}

// Sums of bytes need no unpacking: add the low seven bits, then the high bits without carry.
COLLC_DEVICE uint32_t add_bytes(uint32_t a, uint32_t b) {
  return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}
template <>
COLLC_DEVICE uint32_t combine_word<int8_t, Sum>(uint32_t a, uint32_t b) {
  return add_bytes(a, b);
}
template <>
COLLC_DEVICE uint32_t combine_word<uint8_t, Sum>(uint32_t a, uint32_t b) {
  return add_bytes(a, b);
}

// The larger of each two bytes: compare all four at once in the high bits, then choose by masks. `flip` has the high bits
// set for signed bytes, whose order is that of unsigned ones with the sign turned over.
COLLC_DEVICE uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t flip, bool larger_ones) {
  const uint32_t high = 0x80808080u, x = a ^ flip, y = b ^ flip;
  const uint32_t low_not_less = (x | high) - (y & ~high);
  const uint32_t not_less = ((x & ~y) | (~(x ^ y) & low_not_less)) & high;
  const uint32_t mask = (not_less << 1) - (not_less >> 7);
  return (larger_ones ? b : a) ^ ((a ^ b) & mask);
}
#define COLLC_BYTES(type, flip)                                          \
  template <>                                                            \
  COLLC_DEVICE uint32_t combine_word<type, Max>(uint32_t a, uint32_t b) { \
    return choose_bytes(a, b, flip, true);                               \
  }                                                                      \
  template <>                                                            \
  COLLC_DEVICE uint32_t combine_word<type, Min>(uint32_t a, uint32_t b) { \
    return choose_bytes(a, b, flip, false);                              \
  }
COLLC_BYTES(int8_t, 0x80808080u)
COLLC_BYTES(uint8_t, 0u)
#undef COLLC_BYTES

#define COLLC_BY_PAIRS(type, op, verb)                                         \
  template <>                                                                  \
  COLLC_DEVICE uint32_t combine_word<type, op>(uint32_t a, uint32_t b) {       \
    return verb(a, b);                                                         \
  }
#if COLLC_PAIRS_OF_HALVES
COLLC_BY_PAIRS(Half, Sum, add_halves)
COLLC_BY_PAIRS(Half, Prod, multiply_halves)
#endif
#if COLLC_PAIRS_OF_ALL
COLLC_BY_PAIRS(Half, Max, larger_halves)
COLLC_BY_PAIRS(Half, Min, smaller_halves)
COLLC_BY_PAIRS(Bfloat16, Sum, add_bfloat16s)
COLLC_BY_PAIRS(Bfloat16, Prod, multiply_bfloat16s)
COLLC_BY_PAIRS(Bfloat16, Max, larger_bfloat16s)
COLLC_BY_PAIRS(Bfloat16, Min, smaller_bfloat16s)
#endif
#undef COLLC_BY_PAIRS

// Two words that hold one 8-byte element.
template <class T, class Op>
COLLC_DEVICE void combine_wide(uint32_t &a_low, uint32_t &a_high, uint32_t b_low, uint32_t b_high) {
  const uint64_t a = static_cast<uint64_t>(a_high) << 32 | a_low, b = static_cast<uint64_t>(b_high) << 32 | b_low;
  const uint64_t result = to_bits(combine<T, Op>(bits_to<T>(a), bits_to<T>(b)));
  a_low = static_cast<uint32_t>(result);
  a_high = static_cast<uint32_t>(result >> 32);
}

template <class T, class Op, uint32_t N>
COLLC_DEVICE void combine_words(uint32_t (&a)[N], const uint32_t (&b)[N]) {
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    if constexpr (sizeof(T) < 8) a[i] = combine_word<T, Op>(a[i], b[i]);
    else if (i % 2 == 0) combine_wide<T, Op>(a[i], a[i + 1], b[i], b[i + 1]);
  }
}
template <class T, class Op>
COLLC_DEVICE Pack combine(Pack a, const Pack &b) {
  combine_words<T, Op>(a.word, b.word);
  return a;
}
template <class T, class Op>
COLLC_DEVICE Duo combine(Duo a, const Duo &b) {
  combine_words<T, Op>(a.word, b.word);
  return a;
}

// The end of an average; integers divide toward zero.
template <class T>
COLLC_DEVICE T divide(T value, uint32_t divisor) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<T>(value / static_cast<decltype(+value)>(divisor));
  } else {
    using W = typename Wide<T>::type;
    return Wide<T>::narrow(Wide<T>::widen(value) / static_cast<W>(divisor));
  }
}

// Called, not inlined: sixteen divisions would be most of a kernel.
template <class T>
COLLC_DEVICE_CALLED T quotient(T value, uint32_t divisor) {
  return divide(value, divisor);
}
template <class T, uint32_t N>
COLLC_DEVICE void divide_words(uint32_t (&word)[N], uint32_t divisor) {
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 8) {
      if (i % 2 != 0) continue;
      const uint64_t bits = static_cast<uint64_t>(word[i + 1]) << 32 | word[i];
      const uint64_t result = to_bits(divide(bits_to<T>(bits), divisor));
      word[i] = static_cast<uint32_t>(result);
      word[i + 1] = static_cast<uint32_t>(result >> 32);
    } else {
      uint32_t result = 0;
#pragma unroll
      for (uint32_t k = 0; k < kPerWord<T>; ++k) result |= place_bits(divide(take<T>(word[i], k), divisor), k);
      word[i] = result;
    }
  }
}
template <class T>
COLLC_DEVICE_CALLED Pack quotient(Pack value, uint32_t divisor) {
  divide_words<T>(value.word, divisor);
  return value;
}
template <class T>
COLLC_DEVICE_CALLED Duo quotient(Duo value, uint32_t divisor) {
  divide_words<T>(value.word, divisor);
  return value;
}

}  // namespace collc::cuda
