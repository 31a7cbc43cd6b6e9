// The loops of reduce.h for one instruction set. The build compiles this file once per set, with COLLC_ISA naming it.
#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "base/copy.h"
#include "host/reduce.h"
#include "host/reduce_types.h"

#ifndef COLLC_ISA
#define COLLC_ISA baseline
#endif

namespace collc {
namespace COLLC_ISA {
namespace {

struct Sum {
  static constexpr bool kWraps = true;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a + b;
  }
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return E::add(a, b);
  }
};
struct Prod {
  static constexpr bool kWraps = true;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a * b;
  }
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return E::multiply(a, b);
  }
};
struct Max {
  static constexpr bool kWraps = false;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = a < b ? b : a;
  }
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return a < b ? b : a;
  }
};
struct Min {
  static constexpr bool kWraps = false;
  template <class V>
  static void lanes(V &a, const V &b) {
    a = b < a ? b : a;
  }
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return b < a ? b : a;
  }
};

// Elements that are reduced at a time: the accumulator stays in the first-level cache.
constexpr uint64_t kTile = 1024;

// One register of a type that is computed in itself. Sums and products of integers wrap, so they are unsigned.
template <class T, class Op, bool = std::is_integral_v<T> && Op::kWraps>
struct Lane {
  using Type = T;
};
template <class T, class Op>
struct Lane<T, Op, true> {
  using Type = std::make_unsigned_t<T>;
};
constexpr size_t kRegister = 32;
template <class T>
struct Lanes {
  typedef T Type __attribute__((vector_size(kRegister)));
  struct __attribute__((packed, may_alias)) InMemory {  // at any address
    Type value;
  };
};

// Past the caches; `at` is a multiple of the register.
template <class V>
inline void store_past(void *at, const V &value) {
#if defined(__AVX__)
  __m256i bits;
  std::memcpy(&bits, &value, sizeof bits);
  _mm256_stream_si256(static_cast<__m256i *>(at), bits);
#elif defined(__SSE2__)
  __m128i bits[2];
  std::memcpy(bits, &value, sizeof bits);
  _mm_stream_si128(static_cast<__m128i *>(at), bits[0]);
  _mm_stream_si128(static_cast<__m128i *>(at) + 1, bits[1]);
#else
  std::memcpy(at, &value, sizeof value);
#endif
}

// The same as `reduce` for types that are computed in themselves and nothing beside: the sums stay in registers, so that
// reading, adding and writing overlap. `past` is for the first `streamed` of dests.
template <class T, class Op, bool past>
void combine(const char *const *sources, uint32_t nsources, char *const *dests, uint32_t ndests, uint64_t bytes,
             uint32_t streamed) {
  using V = typename Lanes<typename Lane<T, Op>::Type>::Type;
  using InMemory = typename Lanes<typename Lane<T, Op>::Type>::InMemory;
  constexpr uint64_t kBlock = 4 * sizeof(V);
  const auto combine_one = [&](uint64_t at) {
    using L = typename Lane<T, Op>::Type;
    // Not narrower than unsigned int, whose product of two would be signed.
    using Wide = std::conditional_t<std::is_integral_v<L> && Op::kWraps && sizeof(L) < 4, uint32_t, L>;
    L one;
    std::memcpy(&one, sources[0] + at, sizeof one);
    Wide value = one;
    for (uint32_t s = 1; s < nsources; ++s) {
      std::memcpy(&one, sources[s] + at, sizeof one);
      Op::lanes(value, static_cast<Wide>(one));
    }
    one = static_cast<L>(value);
    for (uint32_t d = 0; d < ndests; ++d) std::memcpy(dests[d] + at, &one, sizeof one);
  };
  uint64_t at = 0;
  if (past)
    for (; at < bytes && (reinterpret_cast<uintptr_t>(dests[0] + at) & 63) != 0; at += sizeof(T)) combine_one(at);
  for (; at + kBlock <= bytes; at += kBlock) {
    const auto *first = reinterpret_cast<const InMemory *>(sources[0] + at);
    V a = first[0].value, b = first[1].value, c = first[2].value, d = first[3].value;
    for (uint32_t s = 1; s < nsources; ++s) {
      const auto *next = reinterpret_cast<const InMemory *>(sources[s] + at);
      Op::template lanes<V>(a, V(next[0].value));
      Op::template lanes<V>(b, V(next[1].value));
      Op::template lanes<V>(c, V(next[2].value));
      Op::template lanes<V>(d, V(next[3].value));
    }
    uint32_t dest = 0;
    for (; past && dest < streamed; ++dest) {
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
  for (; at < bytes; at += sizeof(T)) combine_one(at);
#if defined(__SSE2__)
  if (past) _mm_sfence();  // a store after it may publish the result
#endif
}

// Rounds the first `n` elements of a tile and stores them at element `at` of every destination, the first `streamed` of them
// past the caches.
template <class E>
void store_tile(const typename E::Value *sum, uint64_t n, uint64_t at, void *const *dests, uint32_t ndests, uint32_t streamed) {
  using Storage = typename E::Storage;
  Storage *dest = static_cast<Storage *>(dests[0]) + at;
  if (streamed == 0) {
    for (uint64_t i = 0; i < n; ++i) dest[i] = E::store(sum[i]);
    for (uint32_t j = 1; j < ndests; ++j) std::memcpy(static_cast<Storage *>(dests[j]) + at, dest, n * sizeof(Storage));
    return;
  }
  alignas(64) Storage stored[kTile];
  for (uint64_t i = 0; i < n; ++i) stored[i] = E::store(sum[i]);
  for (uint32_t j = 0; j < ndests; ++j) {
    Storage *to = static_cast<Storage *>(dests[j]) + at;
    if (j < streamed)
      stream(to, stored, n * sizeof(Storage));
    else
      std::memcpy(to, stored, n * sizeof(Storage));
  }
}

template <class E, class Op>
void reduce(const void *const *sources, uint32_t nsources, void *const *dests, uint32_t ndests, uint64_t elements,
            const Finish &finish) {
  if constexpr (std::is_same_v<typename E::Storage, typename E::Value>) {
    using T = typename E::Storage;
    if (nsources > 1 && finish.divisor == 1 && finish.scaled == Finish::kNone) {
      const auto *from = reinterpret_cast<const char *const *>(sources);
      auto *to = reinterpret_cast<char *const *>(dests);
      const bool past = finish.streamed != 0 && reinterpret_cast<uintptr_t>(dests[0]) % sizeof(T) == 0;
      if (past) return combine<T, Op, true>(from, nsources, to, ndests, elements * sizeof(T), finish.streamed);
      return combine<T, Op, false>(from, nsources, to, ndests, elements * sizeof(T), 0);
    }
  }
  using Storage = typename E::Storage;
  using Value = typename E::Value;
  Value scale{};
  if (finish.scaled != Finish::kNone) {
    Storage stored;
    std::memcpy(&stored, finish.scale, sizeof stored);
    scale = E::load(stored);
  }
  alignas(64) Value sum[kTile];
  for (uint64_t at = 0; at < elements; at += kTile) {
    const uint64_t n = std::min(kTile, elements - at);
    const Storage *first = static_cast<const Storage *>(sources[0]) + at;
    uint32_t next = 1;
    if (finish.scaled == 0) {
      for (uint64_t i = 0; i < n; ++i) sum[i] = E::multiply(E::load(first[i]), scale);
    } else if (nsources > 1 && finish.scaled != 1) {
      const Storage *second = static_cast<const Storage *>(sources[1]) + at;
      for (uint64_t i = 0; i < n; ++i) sum[i] = Op::template apply<E>(E::load(first[i]), E::load(second[i]));
      next = 2;
    } else {
      for (uint64_t i = 0; i < n; ++i) sum[i] = E::load(first[i]);
    }
    for (; next < nsources; ++next) {
      const Storage *source = static_cast<const Storage *>(sources[next]) + at;
      if (finish.scaled == next)
        for (uint64_t i = 0; i < n; ++i) sum[i] = Op::template apply<E>(sum[i], E::multiply(E::load(source[i]), scale));
      else
        for (uint64_t i = 0; i < n; ++i) sum[i] = Op::template apply<E>(sum[i], E::load(source[i]));
    }
    if (finish.divisor != 1)
      for (uint64_t i = 0; i < n; ++i) sum[i] = E::divide(sum[i], finish.divisor);
    store_tile<E>(sum, n, at, dests, ndests, finish.streamed);
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
