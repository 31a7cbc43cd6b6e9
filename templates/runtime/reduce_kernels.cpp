// The loops of reduce.h for one instruction set. The build compiles this file once per set, with COLLC_ISA naming it.
#include <algorithm>
#include <cstring>

#include "copy.h"
#include "reduce.h"
#include "reduce_types.h"

#ifndef COLLC_ISA
#define COLLC_ISA baseline
#endif

namespace collc {
namespace COLLC_ISA {
namespace {

struct Sum {
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return E::add(a, b);
  }
};
struct Prod {
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return E::multiply(a, b);
  }
};
struct Max {
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return a < b ? b : a;
  }
};
struct Min {
  template <class E>
  static typename E::Value apply(typename E::Value a, typename E::Value b) {
    return b < a ? b : a;
  }
};

// Elements that are reduced at a time: the accumulator stays in the first-level cache.
constexpr uint64_t kTile = 1024;

template <class E, class Op>
void reduce(const void *const *sources, uint32_t nsources, void *const *dests, uint32_t ndests, uint64_t elements,
            const Finish &finish) {
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
        for (uint64_t i = 0; i < n; ++i)
          sum[i] = Op::template apply<E>(sum[i], E::multiply(E::load(source[i]), scale));
      else
        for (uint64_t i = 0; i < n; ++i) sum[i] = Op::template apply<E>(sum[i], E::load(source[i]));
    }
    if (finish.divisor != 1)
      for (uint64_t i = 0; i < n; ++i) sum[i] = E::divide(sum[i], finish.divisor);
    Storage *dest = static_cast<Storage *>(dests[0]) + at;
    if (finish.stream_first) {
      alignas(64) Storage stored[kTile];
      for (uint64_t i = 0; i < n; ++i) stored[i] = E::store(sum[i]);
      stream(dest, stored, n * sizeof(Storage));
      dest = stored;
      for (uint32_t j = 1; j < ndests; ++j)
        std::memcpy(static_cast<Storage *>(dests[j]) + at, dest, n * sizeof(Storage));
      continue;
    }
    for (uint64_t i = 0; i < n; ++i) dest[i] = E::store(sum[i]);
    for (uint32_t j = 1; j < ndests; ++j)
      std::memcpy(static_cast<Storage *>(dests[j]) + at, dest, n * sizeof(Storage));
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
