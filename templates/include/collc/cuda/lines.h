// The part that LL and LL128 share: chunks whose data carry flags, so that every thread (LL) or warp (LL128) waits for its
// own part.
//
// Counters only show which slots are free. The barriers around a step do not delay data: a thread that has seen its part
// passes it on at once.
#pragma once
#include "collc/cuda/counters.h"
#include "collc/cuda/reduce.h"

namespace collc::cuda {

// The caller's buffers for one chunk; null if the step does not use the buffer.
struct Buffers {
  const char *input;
  char *output;
  uint64_t elements;
  uint32_t operands;  // received chunks, and the rank's own input if the step reads it
  uint32_t own_at;  // index of the own input among the operands; kNoOperand if there is none
};

// A type with this many bytes, so that kernels share code that only moves bits.
template <uint32_t bytes>
struct Raw {
  using type = uint32_t;
};
template <>
struct Raw<1> {
  using type = uint8_t;
};
template <>
struct Raw<2> {
  using type = Half;
};
template <>
struct Raw<8> {
  using type = uint64_t;
};

// Unit `u` (a Duo or a Pack) of a chunk in the caller's buffers; T is a raw type. Unaligned buffers and the end of a chunk
// are accessed element by element, in functions that are called, because inlined they would be most of a kernel.
template <class T, class U>
struct RawUnits {
  static constexpr uint32_t kPerUnit = sizeof(U) / sizeof(T);

  static COLLC_DEVICE uint64_t count(uint64_t elements) { return (elements + kPerUnit - 1) / kPerUnit; }
  static COLLC_DEVICE bool whole(const char *buffer, uint64_t u, uint64_t elements) {
    return reinterpret_cast<uint64_t>(buffer) % sizeof(U) == 0 && (u + 1) * kPerUnit <= elements;
  }
  static COLLC_DEVICE U get(const char *buffer, uint64_t u, uint64_t elements) {
    return whole(buffer, u, elements) ? load(reinterpret_cast<const U *>(buffer) + u) : get_parts(buffer, u, elements);
  }
  static COLLC_DEVICE void put(char *buffer, uint64_t u, uint64_t elements, const U &value) {
    if (whole(buffer, u, elements))
      store(reinterpret_cast<U *>(buffer) + u, value);
    else
      put_parts(buffer, u, elements, value);
  }

 private:
  static COLLC_DEVICE_CALLED U get_parts(const char *buffer, uint64_t u, uint64_t elements) {
    U value{};
    const T *from = reinterpret_cast<const T *>(buffer) + u * kPerUnit;
#pragma unroll
    for (uint32_t k = 0; k < kPerUnit; ++k) {
      if (u * kPerUnit + k >= elements) continue;
      if constexpr (sizeof(T) == 8) {
        const uint64_t bits = to_bits(load(from + k));
        value.word[2 * k] = static_cast<uint32_t>(bits);
        value.word[2 * k + 1] = static_cast<uint32_t>(bits >> 32);
      } else {
        value.word[k / kPerWord<T>] |= place_bits(load(from + k), k % kPerWord<T>);
      }
    }
    return value;
  }
  static COLLC_DEVICE_CALLED void put_parts(char *buffer, uint64_t u, uint64_t elements, U value) {
    T *to = reinterpret_cast<T *>(buffer) + u * kPerUnit;
#pragma unroll
    for (uint32_t k = 0; k < kPerUnit; ++k) {
      if (u * kPerUnit + k >= elements) continue;
      if constexpr (sizeof(T) == 8)
        store(to + k, bits_to<T>(static_cast<uint64_t>(value.word[2 * k + 1]) << 32 | value.word[2 * k]));
      else
        store(to + k, take<T>(value.word[k / kPerWord<T>], k % kPerWord<T>));
    }
  }
};

template <class T, class U>
using Units = RawUnits<typename Raw<sizeof(T)>::type, U>;

template <class Op, class T, class U, uint32_t N>
COLLC_DEVICE void combine_each(uint64_t flip, Partial<T, U> (&partial)[N], const U (&next)[N]) {
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) partial[k].template add<Op>(next[k], flip);
}

template <class T, class U, uint32_t N>
COLLC_DEVICE void combine_by(uint32_t operation, uint64_t flip, Partial<T, U> (&partial)[N], const U (&next)[N]) {
  switch (static_cast<Reduction>(operation)) {
    case Reduction::kProd:
      return combine_each<Prod>(flip, partial, next);
    case Reduction::kMax:
      return combine_each<Max>(flip, partial, next);
    case Reduction::kMin:
      if constexpr (!kIsInteger<T>) return combine_each<Min>(flip, partial, next);
      [[fallthrough]];
    default:
      return combine_each<Sum>(flip, partial, next);
  }
}

// Returns the result of a step with two operands. Called, not inlined, because conversions of floats of 8 bits are long.
template <class T, class U>
COLLC_DEVICE_CALLED U combined_pair(uint32_t operation, uint64_t flip, U a, U b) {
  Partial<T, U> partial[1] = {Partial<T, U>(a)};
  const U next[1] = {b};
  combine_by(operation, flip, partial, next);
  return partial[0].rounded();
}

// The part of both protocols that does not depend on the element type.
class Lines : public Counters {
 public:
  COLLC_DEVICE Progress wait(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    bool failed = failed_;
    if (thread_index() < kWarp) {
#pragma unroll 1
      for (uint32_t i = thread_index(); i < step.nrecv + step.nsend; i += kWarp) {
        FifoEnd &end = ends_[recv[i].fifo];
        const uint64_t passed = passed_before(end, chunk.index);
        slots_[i] = slot_of(end, passed);
        passed_[i] = passed;
        if (i >= step.nrecv) failed |= !wait_for(end, freed_for(end, passed), false, step, recv[i].fifo);
        // For proxy threads, which wait for this many bytes of lines. The word has the number of the chunk, so it needs no
        // order.
        if (i >= step.nrecv && end.chunk_bytes != nullptr && !failed)
          tell_bytes(end.chunk_bytes + slot_number(end, passed) * kWordsPerLine,
                     static_cast<uint64_t>(static_cast<uint32_t>(passed + 1)) << 32 | chunk.elements * element_bytes_);
      }
    }
    return barrier_or(failed) ? Progress::kAborted : Progress::kDone;
  }

  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    barrier();
    publish_counters(step, recv, chunk, false);
  }

 protected:
  static constexpr uint32_t kNoOperand = 0xffffffff;

  COLLC_DEVICE Lines(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                     const ChannelTables &tables, char **slots, uint32_t element_bytes)
      : Counters(state, launch, channel, tables, slots),
        call_(call),
        element_bytes_(element_bytes),
        passed_(reinterpret_cast<uint64_t *>(slots + kMaxPeers)) {}

  template <class T>
  COLLC_DEVICE Buffers buffers_of(const Step &step, const ShareRange &share, const Chunk &chunk) const {
    Buffers made{nullptr, nullptr, chunk.elements, step.nrecv, kNoOperand};
    if (step.flags & kInput) {
      made.input = static_cast<const char *>(call_.input) + (share.in_base + chunk.begin) * sizeof(T);
      ++made.operands;
      made.own_at = own_at(step);
    }
    if (step.flags & kOutput) made.output = static_cast<char *>(call_.output) + (share.out_base + chunk.begin) * sizeof(T);
    // In an in-place call, a rank's own block is already where a copy would store it.
    if (made.input == made.output && step.nrecv == 0) made.output = nullptr;
    return made;
  }

  // Returns whether all units of a chunk, except the last, can be moved whole.
  template <class U>
  static COLLC_DEVICE bool is_aligned(const Buffers &at) {
    return (reinterpret_cast<uint64_t>(at.input) | reinterpret_cast<uint64_t>(at.output)) % sizeof(U) == 0;
  }

  // Returns which of the received chunks is operand `k`.
  static COLLC_DEVICE uint32_t received(const Buffers &at, uint32_t k) { return k > at.own_at ? k - 1 : k; }

  COLLC_DEVICE Pack *slot(uint32_t end) const { return reinterpret_cast<Pack *>(slots_[end]); }

  const RankCall &call_;
  uint32_t element_bytes_;
  uint64_t *passed_;  // by end of the step: chunks that passed before this one; in shared memory
  bool failed_ = false;  // a wait of this thread for data was given up
};

}  // namespace collc::cuda
