// The Simple protocol: chunks in slots, with separate counters. It is the CUDA `Verbs` of step_program.h.
//
// The first warp waits for all chunks and slots of a step; barrier; all threads move the chunk; barrier; the last warp
// publishes. If kLends, a chunk may stay where it is, and its slot only counts; see direct.h. Memory order: device.h.
#pragma once
#include "collc/cuda/counters.h"
#include "collc/cuda/move.h"

namespace collc::cuda {

template <class T, class Chosen = AnyOperation, bool kLends = false>
class Simple : public Counters {
 public:
  COLLC_DEVICE Simple(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                      const ChannelTables &tables, char **slots)
      : Counters(state, launch, channel, tables, slots), call_(call) {}

  // The ends of a step are recv[0 .. nrecv + nsend): receives first, then sends.
  COLLC_DEVICE Progress wait(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    bool failed = false;
    if (thread_index() < kWarp) {
#pragma unroll 1
      for (uint32_t i = thread_index(); i < step.nrecv + step.nsend; i += kWarp) {
        FifoEnd &end = ends_[recv[i].fifo];
        const uint64_t passed = passed_before(end, chunk.index);
        char *&place = slots_[i + (own_at(step) != 0 && i >= own_at(step) ? 1 : 0)];
        place = slot_of(end, passed);
        const bool reads = i < step.nrecv;
        failed |= !wait_for(end, reads ? passed + 1 : freed_for(end, passed), reads, step, recv[i].fifo);
        if constexpr (kLends) {
          if (reads && !failed && end.by_address != 0) {
            const uint64_t at = load(place_word(end.wait_on, end, passed));
            if (at != 0) place = reinterpret_cast<char *>(at);
          }
        }
      }
      if (own_at(step) != 0 && thread_index() == 0) slots_[own_at(step)] = own_operand(chunk);
    }
    return barrier_or(failed) ? Progress::kAborted : Progress::kDone;
  }

  COLLC_DEVICE void move(const Step &step, [[maybe_unused]] const FifoRef *recv, const FifoRef *, const ShareRange &share,
                         const Chunk &chunk) {
    Places from{nullptr, slots_, step.nrecv};
    Places to{nullptr, slots_ + step.nrecv, step.nsend};
    if (step.flags & kInput)
      from.first = static_cast<char *>(const_cast<void *>(call_.input)) + (share.in_base + chunk.begin) * sizeof(T);
    if (step.flags & kOutput) to.first = static_cast<char *>(call_.output) + (share.out_base + chunk.begin) * sizeof(T);
    if constexpr (kLends) {
      const bool stays = (step.flags & kOverwritten) == 0 || call_.input != call_.output;
      const bool is_input = step.nrecv == 0 && (step.flags & kFinal) == 0 && (call_.factor & kLentInput) != 0 && stays;
      const char *lent = lendable(step, recv, is_input, is_input ? from.first : to.first);
      tell_place(step, recv, chunk, is_input, lent);
      if (lent != nullptr) to.nrest = 0;
      lends_ |= lent != nullptr;
    }
    // In an in-place call, a rank's own block is already where a copy would store it. A sum over one rank still has its
    // factor.
    if (from.first == to.first && step.nrecv == 0 && launch_.scaling == Scaling::kNone) to.first = nullptr;
    const uint64_t misplaced = reinterpret_cast<uint64_t>(from.first) | reinterpret_cast<uint64_t>(to.first);
    Scaling scaling = launch_.scaling;
    if (own_at(step) != 0) {
      // The sources are in the order of the operands; wait() has put the place of the own input among them.
      if (scaling != Scaling::kNone) scale_own(from.first, to.first, chunk.elements);
      scaling = Scaling::kNone;
      from = {slots_[0], slots_ + 1, step.nrecv};
    }
    const Arithmetic how{Chosen::operation(launch_), step.flags & kFinal ? launch_.divisor : 0, launch_.flip, scaling,
                         call_.factor};
    move_chunk<T>(from, to, how, chunk.elements, misplaced);
  }

  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    barrier();
    publish_counters(step, recv, chunk, true, chunk.elements * sizeof(T));
  }

 protected:
  bool lends_ = false;  // a chunk of this call was read from this rank's buffers

 private:
  // Returns where the own input is if it is reduced after received chunks; for a scaled sum, in the output. Only all_reduce
  // has such steps, and its blocks begin where the buffers begin.
  COLLC_DEVICE char *own_operand(const Chunk &chunk) const {
    const bool is_scaled = launch_.scaling != Scaling::kNone;
    return static_cast<char *>(is_scaled ? call_.output : const_cast<void *>(call_.input)) + chunk.begin * sizeof(T);
  }

  // All threads call it; it ends with a barrier, because a thread reads results of others.
  COLLC_DEVICE void scale_own(const char *from, char *to, uint64_t elements) const {
    const T *own = reinterpret_cast<const T *>(from);
    T *product = reinterpret_cast<T *>(to);
#pragma unroll 1
    for (uint64_t i = thread_index(); i < elements; i += thread_count())
      store(product + i, scaled<T>(load(own + i), launch_.scaling, call_.factor));
    barrier();
  }

  static COLLC_DEVICE uint64_t *place_word(uint64_t *tail, const FifoEnd &end, uint64_t passed) {
    return tail + 1 + slot_number(end, passed);
  }

  // Returns the distance from the address of this call's input or output to its address in the process of the reader at an
  // end; kNotThere if the reader cannot read it.
  COLLC_DEVICE uint64_t distance(const FifoEnd &end, [[maybe_unused]] bool is_input) const {
    if (end.by_address == kSameAddress) return 0;
    const uint64_t first = call_.factor >> kLentBits;
    if (end.by_address == 0 || first == 0) return kNotThere;
    return launch_.words[first + 2 * (end.by_address - kSameAddress - 1) + (is_input ? 0 : 1)];
  }

  // Returns `at`, where the data of a send are or will be in the output, if all its readers may read there; else null. Slots
  // are aligned, and data that are read in their place must be, too.
  COLLC_DEVICE const char *lendable(const Step &step, const FifoRef *recv, bool is_input, const char *at) const {
    if (step.nsend == 0 || launch_.scaling != Scaling::kNone) return nullptr;
    if (!is_input && (call_.factor & kLentOutput) == 0) return nullptr;
    if (reinterpret_cast<uint64_t>(at) % sizeof(Pack) != 0) return nullptr;
#pragma unroll 1
    for (uint32_t i = step.nrecv; i < step.nrecv + step.nsend; ++i)
      if (distance(ends_[recv[i].fifo], is_input) == kNotThere) return nullptr;
    return at;
  }

  // Stores addresses next to the tails; the tails are stored after the barrier.
  COLLC_DEVICE void tell_place(const Step &step, const FifoRef *recv, const Chunk &chunk, bool is_input,
                               const char *lent) const {
#pragma unroll 1
    for (uint32_t i = step.nrecv + thread_index(); i < step.nrecv + step.nsend; i += thread_count()) {
      const FifoEnd &end = ends_[recv[i].fifo];
      if (end.by_address == 0) continue;
      const uint64_t at = lent == nullptr ? 0 : reinterpret_cast<uint64_t>(lent) + distance(end, is_input);
      store(place_word(end.publish_to, end, passed_before(end, chunk.index)), at);
    }
  }

  const RankCall &call_;
};

}  // namespace collc::cuda
