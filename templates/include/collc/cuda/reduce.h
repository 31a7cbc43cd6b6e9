// Arithmetic on packs of 16 bytes and duos of 8 bytes, left operand first. Floats of 16 and 8 bits are combined in f32 and
// rounded once per step (Partial), so all targets and the interpreter get the same bits.
#pragma once
#include "collc/cuda/elements.h"
#include "collc/cuda/layout.h"

namespace collc::cuda {

enum class Reduction : uint32_t { kSum, kProd, kMax, kMin };

// `flip` is Launch::flip; only integers use it.
struct Sum {
  static constexpr Reduction kind = Reduction::kSum;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b, uint64_t) {
    return static_cast<W>(a + b);
  }
};
struct Prod {
  static constexpr Reduction kind = Reduction::kProd;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b, uint64_t) {
    return static_cast<W>(a * b);
  }
};
// For floats these are maximumNumber and minimumNumber of IEEE 754-2019: a number wins against a NaN, and +0 is larger than
// -0.
struct Max {
  static constexpr Reduction kind = Reduction::kMax;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b, [[maybe_unused]] uint64_t flip) {
    if constexpr (kIsInteger<W>)
      return static_cast<W>(a ^ flip) < static_cast<W>(b ^ flip) ? b : a;
    else
      return larger(a, b);
  }
};
struct Min {  // only for floats; for integers it is Max with another `flip`
  static constexpr Reduction kind = Reduction::kMin;
  template <class W>
  static COLLC_DEVICE W apply(W a, W b, uint64_t) {
    return smaller(a, b);
  }
};

// The arithmetic of a step: members of Launch with these names, and the rank's factor. The divisor is 0 unless the step
// completes an average of integers.
struct Arithmetic {
  uint32_t operation;
  uint32_t divisor;
  uint64_t flip;
  Scaling scaling;
  uint64_t factor;
};

template <class T, class Op>
COLLC_DEVICE T combine(T a, T b, uint64_t flip) {
  return Wide<T>::narrow(Op::apply(Wide<T>::widen(a), Wide<T>::widen(b), flip));
}

template <class T>
constexpr uint32_t kPerWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;

// Elements of up to 4 bytes within a word, by shifts, so that no array is indexed in local memory.
template <class T>
COLLC_DEVICE T take(uint32_t word, uint32_t place) {
  if constexpr (sizeof(T) == 4) {
    return bits_to<T>(word);
  } else {
    const auto bits = word >> (8 * sizeof(T) * place);
    if constexpr (sizeof(T) == 2)
      return T{static_cast<uint16_t>(bits)};
    else if constexpr (kIsFloat8<T>)
      return T{static_cast<uint8_t>(bits)};
    else
      return static_cast<T>(bits);
  }
}
template <class T>
COLLC_DEVICE uint32_t place_bits(T value, uint32_t place) {
  if constexpr (sizeof(T) == 4)
    return to_bits(value);
  else if constexpr (sizeof(T) == 2)
    return static_cast<uint32_t>(value.bits) << (16 * place);
  else if constexpr (kIsFloat8<T>)
    return static_cast<uint32_t>(value.bits) << (8 * place);
  else
    return static_cast<uint32_t>(static_cast<uint8_t>(value)) << (8 * place);
}

template <class T, class Op>
COLLC_DEVICE uint32_t combine_places(uint32_t a, uint32_t b, uint64_t flip) {
  uint32_t result = 0;
#pragma unroll
  for (uint32_t i = 0; i < kPerWord<T>; ++i) result |= place_bits(combine<T, Op>(take<T>(a, i), take<T>(b, i), flip), i);
  return result;
}
template <class T, class Op>
COLLC_DEVICE uint32_t combine_word(uint32_t a, uint32_t b, uint64_t flip) {
  return combine_places<T, Op>(a, b, flip);
}

// The functions on four bytes at once. Sum: adds the low seven bits, then the high bits without carry.
COLLC_DEVICE uint32_t add_bytes(uint32_t a, uint32_t b) {
  return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}
// Product: its low byte depends only on the low bytes of the factors. So byte k of the result is byte k of a product of two
// words, one of them without bits below byte k, the other with its byte k shifted to the bottom.
COLLC_DEVICE uint32_t multiply_bytes(uint32_t a, uint32_t b) {
  const uint32_t low = (a * b & 0xffu) | ((a & 0xff00u) * (b >> 8) & 0xff00u);
  return (a & 0xff000000u) * (b >> 24) + (low | ((a & 0xff0000u) * (b >> 16) & 0xff0000u));
}
// Maximum: compares all four bytes at once in their high bits, then selects by masks.
COLLC_DEVICE uint32_t larger_bytes(uint32_t a, uint32_t b, uint32_t flip) {
  const uint32_t high = 0x80808080u, x = a ^ flip, y = b ^ flip;
  const uint32_t low_not_less = (x | high) - (y & ~high);
  const uint32_t mask = spread_signs((x & ~y) | (~(x ^ y) & low_not_less));
  return (a & mask) | (b & ~mask);
}
template <>
COLLC_DEVICE uint32_t combine_word<uint8_t, Sum>(uint32_t a, uint32_t b, uint64_t) {
  return add_bytes(a, b);
}
template <>
COLLC_DEVICE uint32_t combine_word<uint8_t, Prod>(uint32_t a, uint32_t b, uint64_t) {
  return multiply_bytes(a, b);
}
template <>
COLLC_DEVICE uint32_t combine_word<uint8_t, Max>(uint32_t a, uint32_t b, uint64_t flip) {
  return larger_bytes(a, b, static_cast<uint32_t>(flip));
}

// Combines two words that contain one 8-byte element.
template <class T, class Op>
COLLC_DEVICE void combine_wide(uint32_t &a_low, uint32_t &a_high, uint32_t b_low, uint32_t b_high, uint64_t flip) {
  const uint64_t a = static_cast<uint64_t>(a_high) << 32 | a_low, b = static_cast<uint64_t>(b_high) << 32 | b_low;
  const uint64_t result = to_bits(combine<T, Op>(bits_to<T>(a), bits_to<T>(b), flip));
  a_low = static_cast<uint32_t>(result);
  a_high = static_cast<uint32_t>(result >> 32);
}

template <class T, class Op, uint32_t N>
COLLC_DEVICE void combine_words(uint32_t (&a)[N], const uint32_t (&b)[N], uint64_t flip) {
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    if constexpr (sizeof(T) < 8)
      a[i] = combine_word<T, Op>(a[i], b[i], flip);
    else if (i % 2 == 0)
      combine_wide<T, Op>(a[i], a[i + 1], b[i], b[i + 1], flip);
  }
}
// Products of bytes are long and rare, so they are called, not inlined.
template <class T, class U>
COLLC_DEVICE_CALLED U called_product(U a, U b) {
  combine_words<T, Prod>(a.word, b.word, 0);
  return a;
}
template <class T, class Op, class U>
COLLC_DEVICE U combine_unit(U a, const U &b, uint64_t flip) {
  if constexpr (kSame<T, U>) {
    return combine<T, Op>(a, b, flip);
  } else if constexpr (kSame<T, uint8_t> && kSame<Op, Prod>) {
    return called_product<T>(a, b);
  } else {
    combine_words<T, Op>(a.word, b.word, flip);
    return a;
  }
}

// The combination of a step's operands so far, from the left, for a unit U (a Pack, a Duo or an element T). For narrow floats
// it stays in f32 until rounded().
template <class T, class U, bool = kIsNarrow<T>>
class Partial {
 public:
  COLLC_DEVICE Partial() : unit_{} {}
  COLLC_DEVICE explicit Partial(const U &first) : unit_(first) {}
  template <class Op>
  COLLC_DEVICE void add(const U &next, uint64_t flip) {
    unit_ = combine_unit<T, Op>(unit_, next, flip);
  }
  COLLC_DEVICE U rounded() const { return unit_; }

 private:
  U unit_;
};
template <class T, class U>
class Partial<T, U, true> {
 public:
  COLLC_DEVICE Partial() : part_{} {}
  COLLC_DEVICE explicit Partial(const U &first) {
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) widen(first, i, part_[i]);
  }
  template <class Op>
  COLLC_DEVICE void add(const U &next, uint64_t) {
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) {
      float wide[kPerPart];
      widen(next, i, wide);
#pragma unroll
      for (uint32_t k = 0; k < kPerPart; ++k) part_[i][k] = Op::apply(part_[i][k], wide[k], 0);
    }
  }
  COLLC_DEVICE U rounded() const {
    if constexpr (kSame<T, U>) {
      return Wide<T>::narrow(part_[0][0]);
    } else {
      U unit{};
#pragma unroll
      for (uint32_t i = 0; i < kWords; ++i) {
#pragma unroll
        for (uint32_t k = 0; k < kPerPart; ++k) unit.word[i] |= place_bits(Wide<T>::narrow(part_[i][k]), k);
      }
      return unit;
    }
  }

 private:
  static constexpr uint32_t kWords = (sizeof(U) + 3) / 4, kPerPart = kSame<T, U> ? 1 : kPerWord<T>;
  static COLLC_DEVICE void widen(const U &unit, [[maybe_unused]] uint32_t i, float (&wide)[kPerPart]) {
    if constexpr (kSame<T, U>) {
      wide[0] = Wide<T>::widen(unit);
    } else if constexpr (kIsFloat8<T>) {
      widen_word<T>(unit.word[i], wide);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < kPerPart; ++k) wide[k] = Wide<T>::widen(take<T>(unit.word[i], k));
    }
  }

  float part_[kWords][kPerPart];
};

// Returns the element, or a unit whose elements are all equal to it.
template <class T, class U>
COLLC_DEVICE U repeated(T value) {
  if constexpr (kSame<T, U>) {
    return value;
  } else {
    U unit{};
#pragma unroll
    for (uint32_t i = 0; i < sizeof(U) / 4; ++i) {
      if constexpr (sizeof(T) == 8) {
        unit.word[i] = static_cast<uint32_t>(to_bits(value) >> (i % 2 * 32));
      } else {
#pragma unroll
        for (uint32_t k = 0; k < kPerWord<T>; ++k) unit.word[i] |= place_bits(value, k);
      }
    }
    return unit;
  }
}
template <class T>
COLLC_DEVICE T factor_of(Scaling scaling, uint64_t factor) {
  if (scaling == Scaling::kInMemory) return load(reinterpret_cast<const T *>(factor));
  if constexpr (sizeof(T) == 8)
    return bits_to<T>(factor);
  else
    return take<T>(static_cast<uint32_t>(factor), 0);
}
// Returns a rank's own input in a scaled sum, rounded once. Called, not inlined: if every rank adds all inputs, other ranks
// get this product rounded, so the compiler must not fuse it with the sum here.
template <class T, class U>
COLLC_DEVICE_CALLED U scaled(U value, Scaling scaling, uint64_t factor) {
  Partial<T, U> product(value);
  product.template add<Prod>(repeated<T, U>(factor_of<T>(scaling, factor)), 0);
  return product.rounded();
}

// Completes an average of integers, which is rounded toward zero. `flip` has the sign bit set for signed integers; the
// magnitude is divided.
template <class T>
COLLC_DEVICE T divide(T value, uint32_t divisor, uint64_t flip) {
  const T negative = static_cast<T>(0 - ((value & static_cast<T>(flip)) >> (8 * sizeof(T) - 1)));
  const T quotient = static_cast<T>(static_cast<T>((value ^ negative) - negative) / divisor);
  return static_cast<T>((quotient ^ negative) - negative);
}

// Divides four bytes. `inverse` is 2^16 / divisor, rounded up. It is too large by less than 1, so a byte times it, over 2^16,
// is too large by less than 2^8 / 2^16. A quotient is below the next whole number by at least 1 / divisor. For divisors
// beyond 2^8 the inverse is at most 2^8, and every quotient is 0.
COLLC_DEVICE uint32_t divide_bytes(uint32_t word, uint32_t inverse, uint32_t flip) {
  const uint32_t negative = spread_signs(word & flip), one = negative & 0x01010101u;
  const uint32_t magnitude = add_bytes(word ^ negative, one);
  uint32_t result = 0;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) result |= (take<uint8_t>(magnitude, k) * inverse >> 16) << (8 * k);
  return add_bytes(result ^ negative, one);
}

template <class T, uint32_t N>
COLLC_DEVICE void divide_words(uint32_t (&word)[N], uint32_t divisor, uint64_t flip) {
  constexpr bool kBytes = kSame<T, uint8_t>;
  [[maybe_unused]] const uint32_t inverse = kBytes ? 65535 / divisor + 1 : 0;
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 8) {
      if (i % 2 != 0) continue;
      const uint64_t bits = static_cast<uint64_t>(word[i + 1]) << 32 | word[i];
      const uint64_t result = to_bits(divide(bits_to<T>(bits), divisor, flip));
      word[i] = static_cast<uint32_t>(result);
      word[i + 1] = static_cast<uint32_t>(result >> 32);
    } else if constexpr (kBytes) {
      word[i] = divide_bytes(word[i], inverse, static_cast<uint32_t>(flip));
    } else {
      uint32_t result = 0;
#pragma unroll
      for (uint32_t k = 0; k < kPerWord<T>; ++k) result |= place_bits(divide(take<T>(word[i], k), divisor, flip), k);
      word[i] = result;
    }
  }
}

// U is T, or a Pack or a Duo of elements. Called, not inlined, because sixteen divisions would be most of a kernel.
template <class T, class U>
COLLC_DEVICE_CALLED U integer_quotient(U value, uint32_t divisor, uint64_t flip) {
  if constexpr (kSame<T, U>) {
    return divide(value, divisor, flip);
  } else {
    divide_words<T>(value.word, divisor, flip);
    return value;
  }
}
// Returns a result as it is stored: an average of integers is divided. `divisor` is 0 if there is nothing to divide.
template <class T, class U>
COLLC_DEVICE U finished(const U &value, [[maybe_unused]] uint32_t divisor, [[maybe_unused]] uint64_t flip) {
  if constexpr (kIsInteger<T>)
    if (divisor != 0) return integer_quotient<T>(value, divisor, flip);
  return value;
}

}  // namespace collc::cuda
