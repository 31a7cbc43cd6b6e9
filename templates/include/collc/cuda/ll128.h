// The LL128 protocol: lines of 128 bytes, with 120 bytes of data and a flag of 8 bytes, each stored by one instruction of a
// warp. It has nearly the whole bandwidth of a link and little more than LL's latency, but works only where a line stays in
// one piece (see ll128_load).
//
// A warp moves stripes of two accesses by all lanes. A lane with a flag has room for half a pack in each access, so it has
// one pack per stripe; the other lanes have two. Lane l has pack l of a stripe, and, if it has no flag, one of the remaining
// packs by its index among the lanes without flags. A flag is the chunk's number in the FIFO, counted from 1, in 64 bits, so
// it never repeats.
#pragma once
#include "collc/cuda/lines.h"
#include "collc/cuda/tally.h"

#if !defined(COLLC_PRE_VOLTA)
namespace collc::cuda {

template <class T, class Chosen = AnyOperation>
class LL128 : public Lines {
 public:
  COLLC_DEVICE LL128(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                     const ChannelTables &tables, char **slots)
      : Lines(state, call, launch, channel, tables, slots, sizeof(T)) {}

  COLLC_DEVICE void move(const Step &step, [[maybe_unused]] const FifoRef *recv, const FifoRef *, const ShareRange &share,
                         [[maybe_unused]] const Chunk &chunk) {
    const Buffers at = buffers_of<T>(step, share, chunk);
    const uint64_t stripes = (Units<T, Pack>::count(at.elements) + kStripePacks - 1) / kStripePacks;
    const uint32_t warp = thread_index() / kWarp, warps = thread_count() / kWarp;
    if (at.own_at != kNoOperand && at.own_at != 0) {
#pragma unroll 1
      for (uint64_t s = warp; s < stripes; s += warps)
        if (!run<1, true>(step, recv, at, s)) return;
      return;
    }
#pragma unroll 1
    for (uint64_t s = warp * kTogether; s < stripes; s += warps * kTogether) {
      if (s + kTogether <= stripes && at.operands <= kMaxOperands) {
        if (!run<kTogether, false>(step, recv, at, s)) return;
        continue;
      }
#pragma unroll 1
      for (uint64_t stripe = s; stripe < stripes && stripe < s + kTogether; ++stripe)
        if (!run<1, false>(step, recv, at, stripe)) return;
    }
  }

 private:
  static constexpr uint32_t kStripePacks = 2 * kWarp - kWarp / kLineLanes;
  static constexpr uint32_t kTogether = 2;  // stripes that a warp has in flight
  // Steps with more operands move one stripe at a time. In two stripes a thread has 64 floats of 8 bits; their partial
  // results in f32 and the next operand would need more than 128 registers. Two operands need no partial results.
  static constexpr uint32_t kMaxOperands = kIsFloat8<T> ? 2 : 0xffffffff;

  static COLLC_DEVICE uint32_t lane() { return thread_index() % kWarp; }
  static COLLC_DEVICE bool has_flag() { return lane() % kLineLanes == kLineLanes - 1; }

  static COLLC_DEVICE uint64_t flag_of(uint64_t passed) { return passed + 1; }

  // Moves N stripes from `first` on, by a warp. value[2 k] and value[2 k + 1] are this lane's packs of stripe k; in a lane
  // with a flag, the second one has no meaning. `among`: the own input is reduced after a received chunk. Returns false if a
  // wait was given up.
  template <uint32_t N, bool among>
  COLLC_DEVICE bool run(const Step &step, const FifoRef *recv, const Buffers &at, uint64_t first) {
    Pack value[2 * N];
    [[maybe_unused]] Pack own[2 * N];
    uint32_t next = 0;
    if constexpr (among) get_own(at, first, own);
    if (!among && at.input != nullptr)
      get_own(at, first, value);
    else if (!receive(step, recv, next++, first, value))
      return false;
    // A single operand keeps its bits, because it may be data of any type.
    if (at.operands > 1) {
      bool there;
      if constexpr (kIsFloat8<T> && N > 1)
        there = reduce_pair(step, recv, next, first, value);
      else
        there = reduce<N, among>(step, recv, at, first, next, own, value);
      if (!there) return false;
    }
    const uint32_t divisor = step.flags & kFinal ? launch_.divisor : 0;
#pragma unroll
    for (uint32_t k = 0; k < 2 * N; ++k) value[k] = finished<T>(value[k], divisor, launch_.flip);
    if (at.output != nullptr) put(at, first, value);
#pragma unroll 1
    for (uint32_t i = step.nrecv; i < step.nrecv + step.nsend; ++i) send(i, first, value);
    return true;
  }

  // Combines received chunk `next`, the last operand, onto `value`, the first operand.
  template <uint32_t N>
  COLLC_DEVICE bool reduce_pair(const Step &step, const FifoRef *recv, uint32_t next, uint64_t first, Pack (&value)[N]) {
    Pack other[N];
    if (!receive(step, recv, next, first, other)) return false;
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) value[k] = combined_pair<T>(Chosen::operation(launch_), launch_.flip, value[k], other[k]);
    return true;
  }

  // Combines the received chunks from number `next` on onto `value`, and, if `among`, `own` at its place.
  template <uint32_t N, bool among>
  COLLC_DEVICE bool reduce(const Step &step, const FifoRef *recv, const Buffers &at, uint64_t first, uint32_t next,
                           [[maybe_unused]] const Pack (&own)[2 * N], Pack (&value)[2 * N]) {
    Partial<T, Pack> partial[2 * N];
#pragma unroll
    for (uint32_t k = 0; k < 2 * N; ++k) partial[k] = Partial<T, Pack>(value[k]);
    const auto combine = [&](const Pack(&other)[2 *N]) {
      combine_by(Chosen::operation(launch_), launch_.flip, partial, other);
    };
    if constexpr (among) {
      if (at.own_at == 1) combine(own);
    }
    bool there = true;
#pragma unroll 1
    while (there && next < step.nrecv) {
      Pack other[2 * N];
      there = receive(step, recv, next++, first, other);
      combine(other);
      if constexpr (among) {
        if (at.own_at == next) combine(own);
      }
    }
    // A failed wait ends here, too: a return from the loop would keep the first operand in registers during the loop.
#pragma unroll
    for (uint32_t k = 0; k < 2 * N; ++k) value[k] = partial[k].rounded();
    return there;
  }

  template <uint32_t N>
  COLLC_DEVICE void get_own(const Buffers &at, uint64_t first, Pack (&value)[N]) const {
    get(at, first, value);
    if (launch_.scaling == Scaling::kNone) return;
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) value[k] = scaled<T>(value[k], launch_.scaling, call_.factor);
  }

  template <uint32_t N>
  COLLC_DEVICE void get(const Buffers &at, uint64_t first, Pack (&value)[N]) const {
#pragma unroll
    for (uint32_t k = 0; k < N; ++k)
      if (k % 2 == 0 || !has_flag())
        value[k] = Units<T, Pack>::get(at.input, pack_of(first, k), at.elements);
      else
        value[k] = Pack{};
  }
  template <uint32_t N>
  COLLC_DEVICE void put(const Buffers &at, uint64_t first, const Pack (&value)[N]) const {
#pragma unroll
    for (uint32_t k = 0; k < N; ++k)
      if (k % 2 == 0 || !has_flag()) Units<T, Pack>::put(at.output, pack_of(first, k), at.elements, value[k]);
  }
  static COLLC_DEVICE uint64_t pack_of(uint64_t first, uint32_t k) {
    return (first + k / 2) * kStripePacks + (k % 2 == 0 ? lane() : kWarp + lane() - lane() / kLineLanes);
  }

  template <uint32_t N>
  COLLC_DEVICE bool receive(const Step &step, const FifoRef *recv, uint32_t i, uint64_t first, Pack (&value)[N]) {
    const Pack *lines = slot(i) + first * 2 * kWarp;
    const uint64_t flag = flag_of(passed_[i]);
    bool there = ll128_load(lines, flag, value);
    const bool waits = !there;
    const uint64_t start = there ? 0 : start_of_wait();
    const Activity before = waits ? turn_to(Activity::kWaiting) : Activity::kWaiting;
#pragma unroll 1
    for (uint32_t spins = 1; !there; ++spins) {
      backoff(spins);
      there = ll128_load(lines, flag, value);
      if (there || spins % kSpinsPerLook != 0) continue;
      const bool stop = lane() == 0 && given_up(start, step, recv[i].fifo, passed_[i], flag);
      if (!warp_any(stop)) continue;
      failed_ = true;
      return false;
    }
    if (waits) turn_to(before);
    if (has_flag()) {
#pragma unroll
      for (uint32_t k = 0; k < N; k += 2) {
        value[k].word[2] = value[k + 1].word[0];
        value[k].word[3] = value[k + 1].word[1];
      }
    }
    return true;
  }

  template <uint32_t N>
  COLLC_DEVICE void send(uint32_t i, uint64_t first, const Pack (&value)[N]) const {
    const uint64_t flag = flag_of(passed_[i]);
    Pack lines[N];
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
      lines[k] = value[k];
      if (!has_flag()) continue;
      lines[k].word[0] = value[k & ~1u].word[k % 2 * 2];
      lines[k].word[1] = value[k & ~1u].word[k % 2 * 2 + 1];
      lines[k].word[2] = static_cast<uint32_t>(flag);
      lines[k].word[3] = static_cast<uint32_t>(flag >> 32);
    }
    ll128_store(slot(i) + first * 2 * kWarp, lines);
  }
};

}  // namespace collc::cuda
#endif
