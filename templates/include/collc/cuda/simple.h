// The Simple protocol: chunks in slots, counters beside them. The CUDA `Verbs` of step_program.h.
//
// The first warp waits for all chunks and slots of a step; a barrier; all threads move the chunk; a barrier; the last warp
// publishes.
#pragma once
#include "collc/cuda/counters.h"
#include "collc/cuda/move.h"

namespace collc::cuda {

template <class T, class Chosen = AnyOperation>
class Simple : public Counters {
 public:
  static constexpr uint32_t kProtocol = kSimple;

  COLLC_DEVICE Simple(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                      const ChannelTables &tables, char **slots)
      : Counters(state, launch, kProtocol, channel, tables, slots), call_(call) {}

  // The ends of a step are recv[0 .. nrecv + nsend): receives first, then sends.
  COLLC_DEVICE Progress wait(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    bool failed = false;
    if (thread_index() < kWarp) {
#pragma unroll 1
      for (uint32_t i = thread_index(); i < step.nrecv + step.nsend; i += kWarp) {
        FifoEnd &end = ends_[recv[i].fifo];
        const uint64_t passed = end.position + chunk.index;
        slots_[i] = slot_of(end, passed);
#if defined(COLLC_FAULT_SLOT_WAIT)
        if (i >= step.nrecv) continue;
#elif defined(COLLC_FAULT_CHUNK_WAIT)
        if (i < step.nrecv) continue;
#endif
        const bool reads = i < step.nrecv;
        failed |= !wait_for(end, reads ? passed + 1 : freed_for(end, passed), reads, step, recv[i].fifo);
      }
    }
#if defined(COLLC_FAULT_WAIT_BARRIER)
    return failed ? Progress::kAborted : Progress::kDone;
#else
    return barrier_or(failed) ? Progress::kAborted : Progress::kDone;
#endif
  }

  COLLC_DEVICE void move(const Step &step, [[maybe_unused]] const FifoRef *recv, const FifoRef *, const ShareRange &share,
                         const Chunk &chunk) {
#if defined(COLLC_FAULT_EARLY_FLAG)
    publish_counters(step, recv, chunk, true, chunk.elements * sizeof(T));
#endif
    Places from{nullptr, slots_, step.nrecv};
    Places to{nullptr, slots_ + step.nrecv, step.nsend};
    if (step.flags & kInput)
      from.first = static_cast<char *>(const_cast<void *>(call_.input)) + (share.in_base + chunk.begin) * sizeof(T);
#if defined(COLLC_FAULT_SHORT_OFFSETS)
    if (step.flags & kOutput)
      to.first = static_cast<char *>(call_.output) + static_cast<uint32_t>((share.out_base + chunk.begin) * sizeof(T));
#else
    if (step.flags & kOutput) to.first = static_cast<char *>(call_.output) + (share.out_base + chunk.begin) * sizeof(T);
#endif
    // In place, a rank's own block already lies where a copy would put it. A sum of one rank alone still has its factor.
    if (from.first == to.first && step.nrecv == 0 && Chosen::scaling(launch_) == Scaling::kNone) to.first = nullptr;
    const Arithmetic how{Chosen::operation(launch_), step.flags & kFinal ? launch_.divisor : 0, launch_.flip,
                         Chosen::scaling(launch_), call_.factor};
    move_chunk<T>(from, to, how, chunk.elements);
  }

  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
#if !defined(COLLC_FAULT_PUBLISH_BARRIER)
    barrier();
#endif
#if !defined(COLLC_FAULT_EARLY_FLAG)
    publish_counters(step, recv, chunk, true, chunk.elements * sizeof(T));
#endif
  }

 private:
  const RankCall &call_;
};

}  // namespace collc::cuda
