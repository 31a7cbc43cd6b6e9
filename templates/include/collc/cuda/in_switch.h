// Programs inside a switch: the Simple protocol, with multicast addresses for the slots of some steps.
//
// The FIFOs that a step receives from with kSwitchSum, or sends into with kSwitchCopy, have slots at one offset in the
// memories of all ranks. A rank that fills or empties its own slot uses the address in its own memory (FifoEnd::slots of that
// end). The step with the flag uses the multicast address, which is FifoEnd::slots of all its ends. The counters are
// Simple's, one for each FIFO: a sum is read when all ranks have announced their chunks, and stored when all slots are free.
// The switch adds whole packs; nobody reads the rest of a slot behind a chunk that does not fill its last pack.
#pragma once
#include "collc/cuda/multimem.h"
#include "collc/cuda/simple.h"

namespace collc::cuda {

template <class T>
class InSwitch : public Simple<T> {
 public:
  COLLC_DEVICE InSwitch(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                        const ChannelTables &tables, char **slots)
      : Simple<T>(state, call, launch, channel, tables, slots), own_call_(call) {}

  COLLC_DEVICE void move(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share,
                         const Chunk &chunk) {
    if ((step.flags & (kSwitchSum | kSwitchCopy)) == 0) {
      Simple<T>::move(step, recv, send, share, chunk);
      return;
    }
    const Place place{step.flags & kSwitchSum ? this->slots_[0] : nullptr,
                      step.flags & kSwitchCopy ? this->slots_[step.nrecv] : nullptr,
                      static_cast<const T *>(own_call_.input) + (share.in_base + chunk.begin),
                      static_cast<T *>(own_call_.output) + (share.out_base + chunk.begin),
                      chunk.elements,
                      step.flags & kFinal ? this->launch_.divisor : 0};
    if (place.sum == nullptr) return pass<Copied>(place);
    switch (static_cast<Reduction>(this->launch_.operation)) {
      case Reduction::kMax:
        if constexpr (kSwitchAdds<T, Max>) pass<Summed<Max>>(place);
        return;
      case Reduction::kMin:
        if constexpr (kSwitchAdds<T, Min> && !kIsInteger<T>) pass<Summed<Min>>(place);
        return;
      case Reduction::kSum:
        if constexpr (kSwitchAdds<T, Sum>) pass<Summed<Sum>>(place);
        return;
      default:  // the host runs other programs for these calls
        return;
    }
  }

  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    barrier();
    if (step.nsend != 0 && thread_index() >= (thread_count() / kWarp - 1) * kWarp) alias_fence();
    this->publish_counters(step, recv, chunk, true, chunk.elements * sizeof(T));
  }

 private:
  static constexpr uint32_t kInFlight = 4;
  static constexpr uint32_t kPerPack = sizeof(Pack) / sizeof(T);

  struct Place {
    char *sum;   // multicast address, or null
    char *copy;
    const T *input;
    T *output;
    uint64_t elements;
    uint32_t divisor;
  };

  // 16 bytes of the caller's input, which may have any alignment; zeros behind its end.
  struct Copied {
    static COLLC_DEVICE Pack get(const Place &place, uint64_t i, uint64_t) {
      const uint64_t first = i * kPerPack;
      if (reinterpret_cast<uint64_t>(place.input) % sizeof(Pack) == 0 && first + kPerPack <= place.elements)
        return load(reinterpret_cast<const Pack *>(place.input) + i);
      Pack made{};
#pragma unroll
      for (uint32_t k = 0; k < kPerPack; ++k)
        if (first + k < place.elements) put_element(&made, k, load(place.input + first + k));
      return made;
    }
  };
  template <class Op>
  struct Summed {
    static COLLC_DEVICE Pack get(const Place &place, uint64_t i, uint64_t flip) {
      const Pack sum = switch_sum<T, Op>(reinterpret_cast<const Pack *>(place.sum) + i, flip);
      return Op::kind == Reduction::kSum ? finished<T>(sum, place.divisor, flip) : sum;
    }
  };

  // Elements within a pack, by shifts, so that no array is indexed in local memory.
  static COLLC_DEVICE void put_element(Pack *pack, uint32_t k, T value) {
    const uint64_t bits = raw(value);
    const uint32_t word = k * sizeof(T) / 4;
    pack->word[word] |= static_cast<uint32_t>(bits << 8 * (k * sizeof(T) % 4));
    if constexpr (sizeof(T) == 8) pack->word[word + 1] = static_cast<uint32_t>(bits >> 32);
  }
  static COLLC_DEVICE T element(const Pack &pack, uint32_t k) {
    const uint32_t word = k * sizeof(T) / 4;
    if constexpr (sizeof(T) == 8)
      return bits_to<T>(static_cast<uint64_t>(pack.word[word + 1]) << 32 | pack.word[word]);
    else
      return take<T>(pack.word[word], k * sizeof(T) % 4 / sizeof(T));
  }
  static COLLC_DEVICE uint64_t raw(T value) {
    if constexpr (kIsInteger<T>)
      return value;
    else if constexpr (sizeof(T) <= 2)
      return value.bits;
    else
      return to_bits(value);
  }

  static COLLC_DEVICE void put(const Place &place, uint64_t i, const Pack &value) {
    if (place.copy != nullptr) return switch_store(reinterpret_cast<Pack *>(place.copy) + i, value);
    const uint64_t first = i * kPerPack;
    if (reinterpret_cast<uint64_t>(place.output) % sizeof(Pack) == 0 && first + kPerPack <= place.elements)
      return store(reinterpret_cast<Pack *>(place.output) + i, value);
#pragma unroll
    for (uint32_t k = 0; k < kPerPack; ++k)
      if (first + k < place.elements) store(place.output + first + k, element(value, k));
  }

  template <class From>
  COLLC_DEVICE void pass(const Place &place) {
    const uint64_t packs = (place.elements + kPerPack - 1) / kPerPack, threads = thread_count(), flip = this->launch_.flip;
    uint64_t i = thread_index();
#pragma unroll 1
    for (; i + (kInFlight - 1) * threads < packs; i += kInFlight * threads) {
      Pack value[kInFlight];
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) value[k] = From::get(place, i + k * threads, flip);
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) put(place, i + k * threads, value[k]);
    }
#pragma unroll 1
    for (; i < packs; i += threads) put(place, i, From::get(place, i, flip));
  }

  const RankCall &own_call_;
};

}  // namespace collc::cuda
