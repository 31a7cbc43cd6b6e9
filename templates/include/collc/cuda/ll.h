// The LL protocol (low latency). Every 8 bytes contain 4 bytes of data and a flag, so a reader has the data as soon as it
// sees the flag, and a hop takes only the time of a store. Half of the bytes are flags. Every link can carry LL, which only
// requires that 8 bytes stay in one piece.
//
// The flag of a chunk is its number in the FIFO, counted from 1, in 32 bits; it differs each time a slot is used. After 2^32
// chunks numbers repeat, and a line that only long chunks use might still have the flag of a very old chunk. So once in 2^31
// chunks each slot is written completely ("cleaned"), and no line is ever 2^32 chunks old.
#pragma once
#include "collc/cuda/lines.h"
#include "collc/cuda/tally.h"

namespace collc::cuda {

template <class T, class Chosen = AnyOperation>
class LL : public Lines {
 public:
  COLLC_DEVICE LL(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                  const ChannelTables &tables, char **slots)
      : Lines(state, call, launch, channel, tables, slots, sizeof(T)) {}

  COLLC_DEVICE void move(const Step &step, [[maybe_unused]] const FifoRef *recv, const FifoRef *, const ShareRange &share,
                         [[maybe_unused]] const Chunk &chunk) {
    const Buffers at = buffers_of<T>(step, share, chunk);
    const uint64_t units = Units<T, Duo>::count(at.elements);
    const uint32_t divisor = step.flags & kFinal ? launch_.divisor : 0;
    uint64_t u = thread_index();
    if (step.nrecv <= 1 && is_aligned<Duo>(at)) {
      const uint64_t whole = at.elements / Units<T, Duo>::kPerUnit, ahead = (kTogether - 1) * thread_count();
#pragma unroll 1
      for (; u + ahead < whole; u += kTogether * thread_count())
        if (!several(step, recv, at, u, divisor)) return;
    }
#pragma unroll 1
    for (; u < units; u += thread_count()) {
      Duo own{};
      if (at.input != nullptr) {
        own = Units<T, Duo>::get(at.input, u, at.elements);
        if (launch_.scaling != Scaling::kNone) own = scaled<T>(own, launch_.scaling, call_.factor);
      }
      Duo value = own;  // a single operand keeps its bits, because it may be data of any type
      Partial<T, Duo> partial[1] = {Partial<T, Duo>(own)};
#pragma unroll 1
      for (uint32_t k = at.own_at == 0 ? 1 : 0; k < at.operands;) {
        const uint32_t left = at.operands - k, n = left > kFew ? kMany : left > 1 ? kFew : 1;
        const bool there = n == kMany  ? reduce<kMany>(step, recv, at, u, own, k, value, partial)
                           : n == kFew ? reduce<kFew>(step, recv, at, u, own, k, value, partial)
                                       : reduce<1>(step, recv, at, u, own, k, value, partial);
        if (!there) return;
        k += n;
      }
      if (at.operands > 1) value = partial[0].rounded();
      value = finished<T>(value, divisor, launch_.flip);
      if (at.output != nullptr) Units<T, Duo>::put(at.output, u, at.elements, value);
#pragma unroll 1
      for (uint32_t i = step.nrecv; i < step.nrecv + step.nsend; ++i) ll_store(slot(i) + u, value, flag_of(passed_[i]));
    }
    clean(step, recv, u);
  }

 private:
  static constexpr uint32_t kMany = 8, kFew = 4;  // operands whose loads are in flight together
  // Units of a thread whose loads are in flight together, if a step has one chunk, the own input or both. One after another,
  // each load would wait for the one before.
  static constexpr uint32_t kTogether = 4;
  static constexpr uint32_t kAll = (1u << kTogether) - 1;
  static constexpr uint64_t kHalf = static_cast<uint64_t>(kLLFlags / 2) + 1;  // half of the number of flags

  static COLLC_DEVICE uint32_t flag_of(uint64_t passed) { return static_cast<uint32_t>(passed + 1) & kLLFlags; }

  // Moves kTogether units from `u` on, thread_count() apart. Returns false if a wait was given up.
  COLLC_DEVICE bool several(const Step &step, const FifoRef *recv, const Buffers &at, uint64_t u, uint32_t divisor) {
    Duo value[kTogether], own[kTogether];
    if (at.input != nullptr) {
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) own[k] = load(reinterpret_cast<const Duo *>(at.input) + u + k * thread_count());
      if (launch_.scaling != Scaling::kNone) {
#pragma unroll
        for (uint32_t k = 0; k < kTogether; ++k) own[k] = scaled<T>(own[k], launch_.scaling, call_.factor);
      }
    }
    if (step.nrecv != 0) {
      const Pack *lines = slot(0) + u;
      const auto look_at_all = [&] {
        const Pack *line[kTogether];
        uint32_t flag[kTogether];
#pragma unroll
        for (uint32_t k = 0; k < kTogether; ++k) {
          line[k] = lines + k * thread_count();
          flag[k] = flag_of(passed_[0]);
        }
        return kAll & ~ll_load(line, flag, value);
      };
      if (!receive(step, recv, look_at_all, [](uint32_t) { return 0u; })) return false;
    }
    if (at.input != nullptr && step.nrecv != 0) {
      Partial<T, Duo> partial[kTogether];
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) {
        // Copied first: a selection between the two arrays would select an address and force both into local memory.
        Duo first = value[k], second = own[k];
        if (at.own_at == 0) {
          first = own[k];
          second = value[k];
        }
        partial[k] = Partial<T, Duo>(first);
        value[k] = second;
      }
      combine_by(Chosen::operation(launch_), launch_.flip, partial, value);
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) value[k] = partial[k].rounded();
    }
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      if (step.nrecv == 0) value[k] = own[k];
      value[k] = finished<T>(value[k], divisor, launch_.flip);
    }
    if (at.output != nullptr) {
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) store(reinterpret_cast<Duo *>(at.output) + u + k * thread_count(), value[k]);
    }
#pragma unroll 1
    for (uint32_t i = step.nrecv; i < step.nrecv + step.nsend; ++i) {
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) ll_store(slot(i) + u + k * thread_count(), value[k], flag_of(passed_[i]));
    }
    return true;
  }

  // Combines at most N operands from `first` on onto `partial`, in their order, and stores the step's first operand into
  // `value`. All their loads are in flight before the first flag is checked. If there are fewer operands, or one is the own
  // input, other lines are read twice. Returns false if a wait was given up.
  template <uint32_t N>
  COLLC_DEVICE bool reduce(const Step &step, const FifoRef *recv, const Buffers &at, uint64_t u, const Duo &own, uint32_t first,
                           Duo &value, Partial<T, Duo> (&partial)[1]) {
    Duo got[N];
    if (N > 1 || first != at.own_at) {
      const auto look_at_all = [&] { return look(step, at, u, first, got); };
      if (!receive(step, recv, look_at_all, [&](uint32_t k) { return received(at, first + k); })) return false;
    }
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
      // A selection between the two would select an address, and force both into local memory.
      if (first + k == at.own_at) got[k] = own;
      const Duo next[1] = {got[k]};
      if (first + k == 0)
        partial[0] = Partial<T, Duo>(value = next[0]);
      else if (first + k < at.operands)
        combine_by(Chosen::operation(launch_), launch_.flip, partial, next);
    }
    return true;
  }

  // Waits for lines. `look` loads all lines and returns a bit for each line that has not come; `end_of` returns the end of
  // the step for such a bit.
  template <class Look, class EndOf>
  COLLC_DEVICE bool receive(const Step &step, const FifoRef *recv, const Look &look, const EndOf &end_of) {
    uint32_t missing = look();
    if (missing == 0) return true;
    const uint64_t start = start_of_wait();
    const Activity before = turn_to(Activity::kWaiting);
#pragma unroll 1
    for (uint32_t spins = 1; missing != 0; ++spins) {
      backoff(spins);
      missing = look();
      if (missing == 0 || spins % kSpinsPerLook != 0) continue;
      uint32_t k = 0;
      while ((missing >> k & 1) == 0) ++k;
      const uint32_t i = end_of(k);
      if (!given_up(start, step, recv[i].fifo, passed_[i], passed_[i] + 1)) continue;
      failed_ = true;
      return false;
    }
    turn_to(before);
    return true;
  }

  // Loads lines; returns the bits of the operands that have not come.
  template <uint32_t N>
  COLLC_DEVICE uint32_t look(const Step &step, const Buffers &at, uint64_t u, uint32_t first, Duo (&got)[N]) const {
    const Pack *line[N];
    uint32_t flag[N], wanted = 0;
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
      const uint32_t number = received(at, first + k), i = number < step.nrecv ? number : step.nrecv - 1u;
      line[k] = slot(i) + u;
      flag[k] = flag_of(passed_[i]);
      if (first + k < at.operands && first + k != at.own_at) wanted |= 1u << k;
    }
    return wanted & ~ll_load(line, flag, got);
  }

  // Cleans slots whose turn it is: writes their units from `u` on, by all threads.
  COLLC_DEVICE void clean(const Step &step, const FifoRef *recv, uint64_t u) {
#pragma unroll 1
    for (uint32_t i = step.nrecv; i < step.nrecv + step.nsend; ++i) {
      if ((passed_[i] & (kHalf - 1)) + launch_.most_slots < kHalf) continue;
      const uint64_t units = ends_[recv[i].fifo].slot_bytes / sizeof(Pack);
#pragma unroll 1
      for (uint64_t line = u; line < units; line += thread_count()) ll_store(slot(i) + line, Duo{}, flag_of(passed_[i]));
    }
  }
};

}  // namespace collc::cuda
