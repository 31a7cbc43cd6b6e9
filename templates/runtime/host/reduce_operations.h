// What a reduction does to two values, or to vectors of them.
#pragma once

namespace collc {
namespace {

struct Sum {
  static constexpr bool kWraps = true;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a + b;
  }
};
struct Prod {
  static constexpr bool kWraps = true;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a * b;
  }
};
struct Max {
  static constexpr bool kWraps = false;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a < b ? b : a;
  }
};
struct Min {
  static constexpr bool kWraps = false;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = b < a ? b : a;
  }
};

}  // namespace
}  // namespace collc
