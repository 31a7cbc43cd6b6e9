// The operations of reductions on two vectors of values.
#pragma once
#include <limits>
#include <type_traits>

namespace collc {
namespace {

template <class V>
using ElementOf = std::decay_t<decltype(V{}[0])>;
template <class V>
constexpr bool kHasFloats = std::is_floating_point_v<ElementOf<V>>;

struct Sum {
  static constexpr bool kWraps = true;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a + b;
  }
  template <class V>
  static void finish(V &) {}
};
struct Prod {
  static constexpr bool kWraps = true;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a * b;
  }
  template <class V>
  static void finish(V &) {}
};

// Maxima and minima of floats are maximumNumber and minimumNumber of IEEE 754-2019: a number wins against a NaN, and +0 is
// larger than -0. A result that is a NaN has all bits but the sign's set.
template <class V>
void make_canonical(V &a) {
  using Bits = decltype(a < a);
  if constexpr (kHasFloats<V>) a = a == a ? a : V(Bits{} + std::numeric_limits<ElementOf<Bits>>::max());
}

struct Max {
  static constexpr bool kWraps = false;
  template <class V>
  static void lanes(V &a, const V &b) {
    const V larger = a < b ? b : a;  // a if either is a NaN: one instruction of x86
    if constexpr (kHasFloats<V>) {
      using Bits = decltype(a < b);
      // Floats that are equal differ in the sign of a zero or not at all.
      a = V(Bits(a == a ? larger : b) & (Bits(b) | Bits(a != b)));
    } else {
      a = larger;
    }
  }
  template <class V>
  static void finish(V &a) {
    make_canonical(a);
  }
};
struct Min {
  static constexpr bool kWraps = false;
  template <class V>
  static void lanes(V &a, const V &b) {
    const V smaller = b < a ? b : a;
    if constexpr (kHasFloats<V>) {
      using Bits = decltype(a < b);
      a = V(Bits(a == a ? smaller : b) | (Bits(b) & Bits(a == b)));
    } else {
      a = smaller;
    }
  }
  template <class V>
  static void finish(V &a) {
    make_canonical(a);
  }
};

}  // namespace
}  // namespace collc
