// The loops of reduce.h for one instruction set. The build compiles this file once per set, with COLLC_ISA naming it.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/copy.h"
#include "base/number_types.h"
#include "host/default_rounding.h"
#include "host/reduce.h"
#include "host/reduce_operations.h"

#ifndef COLLC_ISA
#define COLLC_ISA baseline
#endif

namespace collc {
namespace COLLC_ISA {
namespace {

// The type that computes values of T without conversion. Sums and products of integers wrap, so they are unsigned, and one loop
// serves both signs.
template <class T, class Op, bool = std::is_integral_v<T> && Op::kWraps>
struct Lane {
  using Type = T;
};
template <class T, class Op>
struct Lane<T, Op, true> {
  using Type = std::make_unsigned_t<T>;
};
// Wider vectors than the CPU has are taken apart, comparisons element by element.
#if defined(__AVX__)
constexpr size_t kRegister = 32;
#else
constexpr size_t kRegister = 16;
#endif
template <class T>
struct Lanes {
  typedef T Type __attribute__((vector_size(kRegister)));
  struct __attribute__((packed, may_alias)) InMemory {  // at any address
    Type value;
  };
};

// Past the caches; `at` is a multiple of the register. For AVX the instruction itself: the only header that has a name for
// it takes the compiler a second.
template <class V>
inline void store_past(void *at, const V &value) {
#if defined(__AVX__)
  struct __attribute__((may_alias)) Line {
    V value;
  };
  __asm__ volatile("vmovntdq %1, %0" : "=m"(*static_cast<Line *>(at)) : "x"(value));
#elif defined(__SSE2__)
  __m128i bits;
  std::memcpy(&bits, &value, sizeof bits);
  _mm_stream_si128(static_cast<__m128i *>(at), bits);
#else
  std::memcpy(at, &value, sizeof value);
#endif
}

// Leaves a vector of source `s` as it was read.
struct AsItIs {
  template <class V>
  void operator()(V &, uint32_t) const {}
};
template <class T>
struct Scaled {
  T by;
  const bool *is_scaled;
  template <class V>
  void operator()(V &a, uint32_t s) const {
    if (is_scaled[s]) a = a * by;
  }
};

// One element at a time, from byte `at` to byte `end`: before the first and after the last block of `combine`.
template <class L, class Op, class Scale>
__attribute__((noinline)) void combine_each(const char *const *sources, uint32_t nsources, char *const *dests, uint32_t ndests,
                                            uint64_t at, uint64_t end, Scale scale) {
  typedef L One __attribute__((vector_size(sizeof(L))));
  for (; at < end; at += sizeof(L)) {
    One value, next;
    std::memcpy(&value, sources[0] + at, sizeof value);
    scale(value, 0);
    for (uint32_t s = 1; s < nsources; ++s) {
      std::memcpy(&next, sources[s] + at, sizeof next);
      scale(next, s);
      Op::lanes(value, next);
    }
    Op::finish(value);
    for (uint32_t d = 0; d < ndests; ++d) std::memcpy(dests[d] + at, &value, sizeof value);
  }
}

// A reduction of a type that is computed in itself; of integers without a factor and a divisor. The sums stay in registers, so
// that reading, adding and writing overlap. `streamed` as in Finish.
template <class L, class Op, class Scale = AsItIs>
void combine(const char *const *sources, uint32_t nsources, char *const *dests, uint32_t ndests, uint64_t bytes,
             uint32_t streamed, Scale scale = {}) {
  using V = typename Lanes<L>::Type;
  using InMemory = typename Lanes<L>::InMemory;
  constexpr uint64_t kBlock = 4 * sizeof(V);
  const auto load = [&](uint32_t s, uint64_t at) {
    V value = reinterpret_cast<const InMemory *>(sources[s] + at)->value;
    scale(value, s);
    return value;
  };
  if (reinterpret_cast<uintptr_t>(dests[0]) % sizeof(L) != 0) streamed = 0;
  uint64_t at = 0;
  if (streamed != 0) {
    at = std::min(bytes, (0 - reinterpret_cast<uintptr_t>(dests[0])) & 63);
    combine_each<L, Op>(sources, nsources, dests, ndests, 0, at, scale);
  }
  for (; at + kBlock <= bytes; at += kBlock) {
    V a = load(0, at), b = load(0, at + sizeof(V)), c = load(0, at + 2 * sizeof(V)), d = load(0, at + 3 * sizeof(V));
    for (uint32_t s = 1; s < nsources; ++s) {
      Op::lanes(a, load(s, at));
      Op::lanes(b, load(s, at + sizeof(V)));
      Op::lanes(c, load(s, at + 2 * sizeof(V)));
      Op::lanes(d, load(s, at + 3 * sizeof(V)));
    }
    Op::finish(a), Op::finish(b), Op::finish(c), Op::finish(d);
    uint32_t dest = 0;
    for (; dest < streamed; ++dest) {
      char *to = dests[dest] + at;
      store_past(to, a);
      store_past(to + sizeof(V), b);
      store_past(to + 2 * sizeof(V), c);
      store_past(to + 3 * sizeof(V), d);
    }
    for (; dest < ndests; ++dest) {
      auto *to = reinterpret_cast<InMemory *>(dests[dest] + at);
      to[0].value = a, to[1].value = b, to[2].value = c, to[3].value = d;
    }
  }
  for (; at + sizeof(V) <= bytes; at += sizeof(V)) {
    V a = load(0, at);
    for (uint32_t s = 1; s < nsources; ++s) Op::lanes(a, load(s, at));
    Op::finish(a);
    for (uint32_t d = 0; d < ndests; ++d) reinterpret_cast<InMemory *>(dests[d] + at)->value = a;
  }
  if (at < bytes) combine_each<L, Op>(sources, nsources, dests, ndests, at, bytes, scale);
#if defined(__SSE2__)
  if (streamed != 0) _mm_sfence();  // a store after it may publish the result
#endif
}

// The functions below work on tiles of at most this many elements, so that the accumulator stays in the first-level cache.
// Loops that depend only on the type are separate functions: one call per thousand elements costs nothing, and copies of them
// in every reduction would take the compiler longer than the rest of the runtime.
constexpr uint64_t kTile = 1024;
#define COLLC_TILE_LOOP __attribute__((noinline))

template <class E>
typename E::Value scale_of(const Finish &finish) {
  typename E::Storage stored{};
  if (finish.is_scaled != nullptr) std::memcpy(&stored, finish.scale, sizeof stored);
  return E::load(stored);
}

// Stores a tile at `to` of every destination from `from` on, the first `streamed` of them past the caches.
void store_tile(const void *tile, size_t bytes, uint64_t to, void *const *dests, uint32_t from, uint32_t ndests,
                uint32_t streamed) {
  for (uint32_t j = from; j < ndests; ++j) {
    if (j < streamed)
      stream(static_cast<char *>(dests[j]) + to, tile, bytes);
    else
      std::memcpy(static_cast<char *>(dests[j]) + to, tile, bytes);
  }
}

template <class E>
COLLC_TILE_LOOP void scale_tile(const typename E::Storage *from, uint64_t n, typename E::Value scale, typename E::Storage *to) {
  for (uint64_t i = 0; i < n; ++i) to[i] = E::multiply(from[i], scale);
}
template <class E>
COLLC_TILE_LOOP void divide_tile(typename E::Storage *sum, uint64_t n, uint32_t divisor) {
  for (uint64_t i = 0; i < n; ++i) sum[i] = E::divide(sum[i], divisor);
}

// A sum of integers with a factor or a divisor.
template <class E>
void finished_sum(const void *const *sources, uint32_t nsources, void *const *dests, uint32_t ndests, uint64_t elements,
                  const Finish &finish) {
  using T = typename E::Storage;
  using L = typename Lane<T, Sum>::Type;
  const T scale = scale_of<E>(finish);
  alignas(64) T sum[kTile], product[kTile];
  char *const into = reinterpret_cast<char *>(sum);
  for (uint64_t at = 0; at < elements; at += kTile) {
    const uint64_t n = std::min(kTile, elements - at);
    const auto operand = [&](uint32_t s, T *scaled) {
      const T *source = static_cast<const T *>(sources[s]) + at;
      if (!finish.scales(s)) return reinterpret_cast<const char *>(source);
      scale_tile<E>(source, n, scale, scaled);
      return reinterpret_cast<const char *>(scaled);
    };
    const char *pair[2] = {operand(0, sum), nullptr};
    for (uint32_t s = 1; s < nsources; ++s) {
      pair[1] = operand(s, product);
      combine<L, Sum>(pair, 2, &into, 1, n * sizeof(T), 0);
      pair[0] = into;
    }
    if (pair[0] != into) std::memcpy(sum, pair[0], n * sizeof(T));
    if (finish.divisor != 1) divide_tile<E>(sum, n, finish.divisor);
    store_tile(sum, n * sizeof(T), at * sizeof(T), dests, 0, ndests, finish.streamed);
  }
}

// The loops of a type that is computed in f32, over at most a tile.
struct FloatLoops {
  size_t size;  // of an element
  void (*load)(const void *from, uint64_t n, float *to);
  void (*round)(const float *sum, uint64_t n, void *to);
  // Sums of the types of 16 bits, which jobs use all the time, do without a tile for each source; null for others.
  void (*add_two)(const void *a, const void *b, uint64_t n, float *to);
  void (*add)(const void *from, uint64_t n, float *sum);
};

template <class E>
struct LoopsOf {
  using Storage = typename E::Storage;
  static void load(const void *from, uint64_t n, float *to) {
    for (uint64_t i = 0; i < n; ++i) to[i] = E::load(static_cast<const Storage *>(from)[i]);
  }
  static void round(const float *sum, uint64_t n, void *to) {
    for (uint64_t i = 0; i < n; ++i) static_cast<Storage *>(to)[i] = E::store(sum[i]);
  }
  static void add_two(const void *a, const void *b, uint64_t n, float *to) {
    for (uint64_t i = 0; i < n; ++i)
      to[i] = E::load(static_cast<const Storage *>(a)[i]) + E::load(static_cast<const Storage *>(b)[i]);
  }
  static void add(const void *from, uint64_t n, float *sum) {
    for (uint64_t i = 0; i < n; ++i) sum[i] += E::load(static_cast<const Storage *>(from)[i]);
  }
  static constexpr bool kFused = sizeof(Storage) == 2;
  static constexpr FloatLoops loops() {
    if constexpr (kFused)
      return {sizeof(Storage), load, round, add_two, add};
    else
      return {sizeof(Storage), load, round, nullptr, nullptr};
  }
};

// One of combine<float>, of two sources into the first.
using CombineTiles = void (*)(float *sum, const float *other, uint64_t n);
template <class Op>
COLLC_TILE_LOOP void combine_tiles(float *sum, const float *other, uint64_t n) {
  const char *const pair[2] = {reinterpret_cast<const char *>(sum), reinterpret_cast<const char *>(other)};
  char *const into = reinterpret_cast<char *>(sum);
  combine<float, Op>(pair, 2, &into, 1, n * sizeof(float), 0);
}

COLLC_TILE_LOOP void scale_floats(float *tile, uint64_t n, float scale) {
  for (uint64_t i = 0; i < n; ++i) tile[i] *= scale;
}

// A reduction of a type that is computed in f32. `type` has the loops of sums only if this is one.
void reduce_in_float(const FloatLoops &type, CombineTiles combine_two, const void *const *sources, uint32_t nsources,
                     void *const *dests, uint32_t ndests, uint64_t elements, const Finish &finish) {
  alignas(64) float sum[kTile], other[kTile];
  alignas(64) char stored[2 * kTile];
  float scale = 1;
  if (finish.is_scaled != nullptr) type.load(finish.scale, 1, &scale);
  for (uint64_t at = 0; at < elements; at += kTile) {
    const uint64_t n = std::min(kTile, elements - at);
    const auto source = [&](uint32_t s) { return static_cast<const char *>(sources[s]) + at * type.size; };
    const auto load = [&](uint32_t s, float *to) {
      type.load(source(s), n, to);
      if (!finish.scales(s)) return;
      scale_floats(to, n, scale);
      type.round(to, n, stored);  // as the product is where it goes to another rank
      type.load(stored, n, to);
    };
    uint32_t next = 1;
    if (type.add_two != nullptr && nsources > 1 && !finish.scales(0) && !finish.scales(1)) {
      type.add_two(source(0), source(1), n, sum);
      next = 2;
    } else {
      load(0, sum);
    }
    for (; next < nsources; ++next) {
      if (type.add != nullptr && !finish.scales(next)) {
        type.add(source(next), n, sum);
      } else {
        load(next, other);
        combine_two(sum, other, n);
      }
    }
    const bool past = finish.streamed != 0;
    void *const rounded = past ? stored : static_cast<char *>(dests[0]) + at * type.size;
    type.round(sum, n, rounded);
    store_tile(rounded, n * type.size, at * type.size, dests, past ? 0 : 1, ndests, finish.streamed);
  }
}

template <class E, class Op>
void reduce(const void *const *sources, uint32_t nsources, void *const *dests, uint32_t ndests, uint64_t elements,
            const Finish &finish) {
  if constexpr (std::is_same_v<typename E::Storage, typename E::Value>) {
    using L = typename Lane<typename E::Storage, Op>::Type;
    const auto *from = reinterpret_cast<const char *const *>(sources);
    auto *to = reinterpret_cast<char *const *>(dests);
    const uint64_t bytes = elements * sizeof(L);
    if constexpr (std::is_integral_v<L>) {
      if constexpr (std::is_same_v<Op, Sum>)
        if (finish.is_scaled != nullptr || finish.divisor != 1)
          return finished_sum<E>(sources, nsources, dests, ndests, elements, finish);
      combine<L, Op>(from, nsources, to, ndests, bytes, finish.streamed);
    } else {
      const DefaultRounding here;
      if constexpr (std::is_same_v<Op, Sum>)
        if (finish.is_scaled != nullptr)
          return combine<L, Op>(from, nsources, to, ndests, bytes, finish.streamed,
                                Scaled<L>{scale_of<E>(finish), finish.is_scaled});
      combine<L, Op>(from, nsources, to, ndests, bytes, finish.streamed);
    }
  } else {
    const DefaultRounding here;
    FloatLoops type = LoopsOf<E>::loops();
    if constexpr (!std::is_same_v<Op, Sum>) type.add_two = nullptr, type.add = nullptr;
    reduce_in_float(type, combine_tiles<Op>, sources, nsources, dests, ndests, elements, finish);
  }
}

template <class E>
ReduceFunction of_operation(ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
      return reduce<E, Sum>;
    case ncclProd:
      return reduce<E, Prod>;
    case ncclMax:
      return reduce<E, Max>;
    case ncclMin:
      return reduce<E, Min>;
    default:
      return nullptr;
  }
}

}  // namespace

ReduceFunction find(ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8:
      return of_operation<Integer<int8_t>>(op);
    case ncclUint8:
      return of_operation<Integer<uint8_t>>(op);
    case ncclInt32:
      return of_operation<Integer<int32_t>>(op);
    case ncclUint32:
      return of_operation<Integer<uint32_t>>(op);
    case ncclInt64:
      return of_operation<Integer<int64_t>>(op);
    case ncclUint64:
      return of_operation<Integer<uint64_t>>(op);
    case ncclFloat16:
      return of_operation<Half>(op);
    case ncclFloat32:
      return of_operation<Real<float>>(op);
    case ncclFloat64:
      return of_operation<Real<double>>(op);
    case ncclBfloat16:
      return of_operation<Bfloat16>(op);
    case ncclFloat8e4m3:
      return of_operation<Fp8E4M3>(op);
    case ncclFloat8e5m2:
      return of_operation<Fp8E5M2>(op);
    default:
      return nullptr;
  }
}

}  // namespace COLLC_ISA
}  // namespace collc
