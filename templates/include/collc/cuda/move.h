// Moves one chunk by all threads of a block: any number of sources, reduced in order, to any number of destinations.
#pragma once
#include "collc/cuda/reduce.h"

namespace collc::cuda {

// Sources or destinations: `first`, if it is not null, then `rest`. The first is the caller's buffer, known to every thread.
// The others are slots, whose addresses are in shared memory.
struct Places {
  char *first;
  char *const *rest;
  uint32_t nrest;
};

// Moves units [begin, end) of a chunk; a unit U is a Pack or an element. The warps take turns with full segments of N x kWarp
// units, so that a thread has N accesses in flight at constant distances from one address. All threads share the remaining
// units.
template <class T, class U>
struct Mover {
  static constexpr uint32_t kCopyUnroll = sizeof(U) == 16 ? 8 : 4;
  static constexpr uint32_t kReduceUnroll = 4;
  // True: the next source is loaded while one is reduced, and the first one while the own input is reduced. Bytes need so
  // much arithmetic that there are no registers left for this. In code that is compiled for sm_120 (not from PTX for sm_80)
  // the compiler would have more loads in flight than it has registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  static constexpr bool kAhead = false;
#else
  static constexpr bool kAhead = sizeof(T) > 1;
#endif

  static COLLC_DEVICE const U *at(const char *place, uint64_t i) { return reinterpret_cast<const U *>(place) + i; }
  static COLLC_DEVICE U *at(char *place, uint64_t i) { return reinterpret_cast<U *>(place) + i; }

  template <uint32_t N>
  static COLLC_DEVICE void get(const char *from, U (&value)[N], uint64_t i) {
    const U *unit = at(from, i);
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) value[k] = load(unit + k * kWarp);
  }

  template <uint32_t N>
  static COLLC_DEVICE void put(char *to, const U (&value)[N], uint64_t i) {
    U *unit = at(to, i);
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) store(unit + k * kWarp, value[k]);
  }

  template <uint32_t N>
  static COLLC_DEVICE void put_all(const Places &to, const U (&value)[N], uint64_t i) {
    if (to.first != nullptr) put(to.first, value, i);
#pragma unroll 1
    for (uint32_t d = 0; d < to.nrest; ++d) put(to.rest[d], value, i);
  }

  template <class Op, uint32_t N>
  static COLLC_DEVICE void combine_all(Partial<T, U> (&partial)[N], const U (&next)[N], uint64_t flip) {
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) partial[k].template add<Op>(next[k], flip);
  }

  struct Copy {
    static constexpr uint32_t kUnroll = kCopyUnroll;
    template <uint32_t N>
    static COLLC_DEVICE void group(const Places &from, const Places &to, const Arithmetic &, uint64_t i) {
      U value[N];
      get(from.first, value, i);
      put_all(to, value, i);
    }
  };

  template <class Op>
  struct Reduce {
    static constexpr uint32_t kUnroll = kReduceUnroll;
    template <uint32_t N>
    static COLLC_DEVICE void group(const Places &from, const Places &to, const Arithmetic &how, uint64_t i) {
      U value[N];
      get(from.first, value, i);
      if constexpr (Op::kind == Reduction::kSum) {
        if (how.scaling != Scaling::kNone) {
#pragma unroll
          for (uint32_t k = 0; k < N; ++k) value[k] = scaled<T>(value[k], how.scaling, how.factor);
        }
      }
      Partial<T, U> partial[N];
#pragma unroll
      for (uint32_t k = 0; k < N; ++k) partial[k] = Partial<T, U>(value[k]);
      if constexpr (kAhead) {
        U next[N];
        if (from.nrest != 0) get(from.rest[0], next, i);
#pragma unroll 1
        for (uint32_t s = 1; s <= from.nrest; ++s) {
          U one[N];
#pragma unroll
          for (uint32_t k = 0; k < N; ++k) one[k] = next[k];
          if (s < from.nrest) get(from.rest[s], next, i);
          combine_all<Op>(partial, one, how.flip);
        }
      } else {
        U one[N];
#pragma unroll 1
        for (uint32_t s = 0; s < from.nrest; ++s) {
          get(from.rest[s], one, i);
          combine_all<Op>(partial, one, how.flip);
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < N; ++k) {
        value[k] = partial[k].rounded();
        if constexpr (Op::kind == Reduction::kSum) value[k] = finished<T>(value[k], how.divisor, how.flip);
      }
      put_all(to, value, i);
    }
  };

  template <class Work>
  static COLLC_DEVICE void spread(const Places &from, const Places &to, const Arithmetic &how, uint64_t begin, uint64_t end) {
    constexpr uint32_t kSegment = Work::kUnroll * kWarp;
    const uint32_t threads = thread_count(), thread = thread_index();
    if (end - begin > threads) {
      const uint64_t rest = begin + (end - begin) / kSegment * kSegment;
      uint64_t i = begin + thread / kWarp * kSegment + thread % kWarp;
#pragma unroll 1
      for (; i < rest; i += Work::kUnroll * threads) Work::template group<Work::kUnroll>(from, to, how, i);
      begin = rest;
    }
#pragma unroll 1
    for (uint64_t i = begin + thread; i < end; i += threads) Work::template group<1>(from, to, how, i);
  }

  static COLLC_DEVICE void run(const Places &from, const Places &to, const Arithmetic &how, uint64_t begin, uint64_t end) {
    if (begin == end) return;
    // If there is no own input, there is one source.
    if (from.first == nullptr || (from.nrest == 0 && how.scaling == Scaling::kNone))
      return spread<Copy>(Places{from.first != nullptr ? from.first : from.rest[0], nullptr, 0}, to, how, begin, end);
    switch (static_cast<Reduction>(how.operation)) {
      case Reduction::kProd:
        return spread<Reduce<Prod>>(from, to, how, begin, end);
      case Reduction::kMax:
        return spread<Reduce<Max>>(from, to, how, begin, end);
      case Reduction::kMin:
        if constexpr (!kIsInteger<T>) return spread<Reduce<Min>>(from, to, how, begin, end);
        [[fallthrough]];
      default:
        return spread<Reduce<Sum>>(from, to, how, begin, end);
    }
  }
};

// Moves a chunk. Slots are aligned, so only the addresses of the caller's buffers, or-ed in `misplaced`, decide whether 16
// bytes can be moved at once.
template <class T>
COLLC_DEVICE void move_chunk(const Places &from, const Places &to, const Arithmetic &how, uint64_t elements,
                             uint64_t misplaced) {
  if (to.first == nullptr && to.nrest == 0) return;
  uint64_t done = 0;
  if (misplaced % sizeof(Pack) == 0) {
    const uint64_t packs = elements * sizeof(T) / sizeof(Pack);
    Mover<T, Pack>::run(from, to, how, 0, packs);
    done = packs * (sizeof(Pack) / sizeof(T));
  }
  Mover<T, T>::run(from, to, how, done, elements);
}

}  // namespace collc::cuda
