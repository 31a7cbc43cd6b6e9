// The Simple protocol: chunks in slots, counters beside them. The CUDA `Verbs` of step_program.h.
//
// A block is one channel of one rank. The first warp waits, one lane per FIFO end, and leaves the slots' addresses in
// shared memory; a barrier; all threads move the chunk; a barrier; the last warp publishes, so that the next wait does not
// stand behind the release. A failed wait returns kAborted to all threads alike.
//
// COLLC_FAULT_... break the protocol at one place each; only the tests define them, to prove that they would notice.
#pragma once
#include "collc/cuda/layout.h"
#include "collc/cuda/move.h"
#include "collc/step_program.h"

namespace collc::cuda {

// The part that knows no element type.
class SimpleFlags {
 public:
  // The ends of a step are recv[0 .. nrecv + nsend): receives first, then sends.
  COLLC_DEVICE Progress wait(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
    bool failed = false;
    if (thread_index() < kWarp) {
#pragma unroll 1
      for (uint32_t i = thread_index(); i < step.nrecv + step.nsend; i += kWarp) {
        const FifoEnd &end = state_.ends[recv[i].fifo];
        const uint64_t passed = end.position + chunk.index;
        slots_[i] = end.slots + slot_of(passed) * state_.slot_bytes;
        // A reader needs the chunk there; a writer needs the chunk that was in the slot before to be read.
        const uint64_t need = i < step.nrecv ? passed + 1 : passed < state_.slots ? 0 : passed + 1 - state_.slots;
#if defined(COLLC_FAULT_SLOT_WAIT)
        if (i >= step.nrecv) continue;
#elif defined(COLLC_FAULT_CHUNK_WAIT)
        if (i < step.nrecv) continue;
#endif
        failed |= !wait_for(end, need, step, recv[i].fifo);
      }
    }
#if defined(COLLC_FAULT_WAIT_BARRIER)
    return failed ? Progress::kAborted : Progress::kDone;
#else
    return barrier_or(failed) ? Progress::kAborted : Progress::kDone;
#endif
  }

  COLLC_DEVICE void publish(const Step &step, const FifoRef *recv, const FifoRef *, const Chunk &chunk) {
#if !defined(COLLC_FAULT_PUBLISH_BARRIER)
    barrier();
#endif
#if !defined(COLLC_FAULT_EARLY_FLAG)
    publish_flags(step, recv, chunk);
#endif
  }

  // After the last step of a call: chunk 0 of the next call follows the last chunk of this one.
  COLLC_DEVICE void finish(uint32_t nsteps, const FifoRef *refs, const ShareRange *shares) {
#if !defined(COLLC_FAULT_FINISH_BARRIER)
    barrier();  // the last warp may still be reading positions
#endif
#if !defined(COLLC_FAULT_POSITION)
#pragma unroll 1
    for (uint32_t s = thread_index(); s < nsteps; s += thread_count()) {
      const FifoRef *ref = refs + steps_[s].first_ref;
#pragma unroll 1
      for (uint32_t i = 0; i < steps_[s].nrecv + steps_[s].nsend; ++i)
        state_.ends[ref[i].fifo].position += shares[steps_[s].share].nchunks;
    }
#endif
  }

 protected:
  // `steps` are the channel's; `slots` is shared memory for kMaxPeers addresses.
  COLLC_DEVICE SimpleFlags(const RankState &state, const Launch &launch, uint32_t channel, const Step *steps, char **slots)
      : state_(state), launch_(launch), channel_(channel), steps_(steps), slots_(slots) {}

  COLLC_DEVICE uint32_t slot_of(uint64_t passed) const {
    const uint32_t slots = state_.slots;
    return static_cast<uint32_t>((slots & (slots - 1)) == 0 ? passed & (slots - 1) : passed % slots);
  }

  COLLC_DEVICE void publish_flags(const Step &step, const FifoRef *recv, const Chunk &chunk) {
    const uint32_t first = (thread_count() / kWarp - 1) * kWarp;
    if (thread_index() < first) return;
#pragma unroll 1
    for (uint32_t i = thread_index() - first; i < step.nrecv + step.nsend; i += kWarp) {
#if defined(COLLC_FAULT_HEAD_STORE)
      if (i < step.nrecv) continue;
#elif defined(COLLC_FAULT_TAIL_STORE)
      if (i >= step.nrecv) continue;
#endif
      const FifoEnd &end = state_.ends[recv[i].fifo];
      flag_store(end.publish_to, end.position + chunk.index + 1);
    }
  }

  COLLC_DEVICE bool wait_for(const FifoEnd &end, uint64_t need, const Step &step, uint32_t end_number) {
    uint64_t have = flag_load(end.wait_on);
    if (have >= need) return true;
    const uint64_t start = state_.timeout_ns == 0 ? 0 : clock_ns();
#pragma unroll 1
    for (uint32_t spins = 1;; ++spins) {
      backoff(spins);
      have = flag_load(end.wait_on);
      if (have >= need) return true;
      if (spins % kSpinsPerLook != 0) continue;
      ReportState why = ReportState::kNone;
      if (host_load(state_.abort_flag) != 0) why = ReportState::kAborted;
      else if (state_.timeout_ns != 0 && clock_ns() - start > state_.timeout_ns) why = ReportState::kTimedOut;
      if (why == ReportState::kNone) continue;
      give_up(why, step, end_number, have, need);
      return false;
    }
  }

  // One lane of a block may overwrite another's report; each is true. The first to time out stops its whole rank.
  COLLC_DEVICE void give_up(ReportState why, const Step &step, uint32_t end_number, uint64_t have, uint64_t need) {
    Report &report = state_.reports[channel_];
    report.peer = end_number;
    report.program = launch_.program;
    report.step = static_cast<uint32_t>(&step - steps_);
    report.have = have;
    report.need = need;
    host_store(&report.state, static_cast<uint32_t>(why));
    if (why == ReportState::kTimedOut) host_store(state_.abort_flag, 1);
  }

  const RankState &state_;
  const Launch &launch_;
  uint32_t channel_;
  const Step *steps_;
  char **slots_;
};

template <class T, class Op>
class Simple : public SimpleFlags {
 public:
  COLLC_DEVICE Simple(const RankState &state, const RankCall &call, const Launch &launch, uint32_t channel,
                      const Step *steps, char **slots)
      : SimpleFlags(state, launch, channel, steps, slots), call_(call) {}

  COLLC_DEVICE void move(const Step &step, [[maybe_unused]] const FifoRef *recv, const FifoRef *,
                         const ShareRange &share, const Chunk &chunk) {
#if defined(COLLC_FAULT_EARLY_FLAG)
    publish_flags(step, recv, chunk);
#endif
    Places from{nullptr, slots_, step.nrecv};
    Places to{nullptr, slots_ + step.nrecv, step.nsend};
    if (step.flags & kInput)
      from.first = static_cast<char *>(const_cast<void *>(call_.input)) + (share.in_base + chunk.begin) * sizeof(T);
    if (step.flags & kOutput)
      to.first = static_cast<char *>(call_.output) + (share.out_base + chunk.begin) * sizeof(T);
    // In place, a rank's own block already lies where a copy would put it.
    if (from.first == to.first && step.nrecv == 0) to.first = nullptr;
    move_chunk<T, Op>(from, to, step.flags & kFinal ? launch_.divisor : 0, chunk.elements);
  }

 private:
  const RankCall &call_;
};

}  // namespace collc::cuda
