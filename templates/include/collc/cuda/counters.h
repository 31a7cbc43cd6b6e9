// What the protocols share: ends of FIFOs, waits on their counters, and what happens at the end of a call. Knows no element
// type.
//
// A block is one channel of one rank. Before a step moves its chunk, the first warp waits, one lane per FIFO end, and leaves
// addresses in shared memory; after it the last warp publishes, so that the next wait does not stand behind the release.
// A failed wait returns kAborted to all threads alike.
#pragma once
#include "collc/cuda/device.h"
#include "collc/cuda/layout.h"
#include "collc/step_program.h"

namespace collc::cuda {

// The tables of one channel on one rank: as they lie in memory, or as copied into shared memory. References count from `refs`.
struct ChannelTables {
  const Step *steps;
  const FifoRef *refs;
  FifoEnd *ends;         // FifoRef::fifo counts from here
};

// Which reductions a protocol's code is for: whatever a launch says, or sums alone.
struct AnyOperation {
  static COLLC_DEVICE uint32_t operation(const Launch &launch) { return launch.operation; }
};
struct SumsAlone {
  static COLLC_DEVICE uint32_t operation(const Launch &) { return 0; }
};

// What lies `units` behind a rank's state. None of these addresses depends on anything that is loaded.
template <class T>
COLLC_DEVICE T *table_at(const RankState &state, uint32_t units) {
  char *const first = reinterpret_cast<char *>(const_cast<RankState *>(&state));
  return reinterpret_cast<T *>(first + uint64_t{units} * kTableUnit);
}
COLLC_DEVICE const DeviceChannel *channel_row(const RankState &state, const Launch &launch, uint32_t channel) {
  return table_at<const DeviceChannel>(state, launch.channels_at + channel * launch.channel_units);
}
COLLC_DEVICE FifoEnd *ends_at_home(const RankState &state, const Launch &launch) {
  return table_at<FifoEnd>(state, launch.ends_at);
}
COLLC_DEVICE ChannelTables tables_at_home(const RankState &state, const Launch &launch, uint32_t channel) {
  const auto *steps = reinterpret_cast<const Step *>(channel_row(state, launch, channel) + 1);
  return {steps, reinterpret_cast<const FifoRef *>(steps + launch.most_steps), ends_at_home(state, launch)};
}

class Counters {
 public:
  // After the last step of a call: chunk 0 of the next call follows the last chunk of this one.
  COLLC_DEVICE void finish(uint32_t nsteps, const FifoRef *refs, const ShareRange *shares) {
    if (launch_.cached == 0) barrier();  // the last warp may still be reading positions where they are changed
    const uint32_t warps = thread_count() / kWarp, lane = thread_index() % kWarp;
#pragma unroll 1
    for (uint32_t s = thread_index() / kWarp; s < nsteps; s += warps) {
      const Step &step = steps_[s];
      const FifoRef *ref = refs + step.first_ref;
      const uint64_t nchunks = shares[step.share].nchunks;
#pragma unroll 1
      for (uint32_t i = lane; i < step.nrecv + step.nsend; i += kWarp) {
        const FifoEnd &end = ends_[ref[i].fifo];
        // Of tables in shared memory a reference says where its end is at home (executor.h).
        FifoEnd &home = ends_at_home(state_, launch_)[launch_.cached != 0 ? ref[i].reader : ref[i].fifo];
        home.position = passed_before(end, nchunks);
        home.seen = end.seen;
      }
    }
  }

 protected:
  // `tables` are the channel's; `slots` is shared memory for kMaxPeers addresses.
  COLLC_DEVICE Counters(const RankState &state, const Launch &launch, uint32_t channel, const ChannelTables &tables,
                        char **slots)
      : state_(state), launch_(launch), ends_(tables.ends), channel_(channel), steps_(tables.steps), slots_(slots) {}

  // Of a step of the channel that waits, which need not lie in the table (specialised.h): no other one has its references.
  COLLC_DEVICE uint32_t number_of(const Step &step) const {
    uint32_t number = 0;
    while (steps_[number].first_ref != step.first_ref || steps_[number].nrecv + steps_[number].nsend == 0) ++number;
    return number;
  }

  // Of an end among the rank's, which the next call begins with. Read anew: registers are dear while chunks move.
  COLLC_DEVICE uint32_t home_number(uint32_t end) const {
    if (launch_.cached == 0) return end;
    return tables_at_home(state_, launch_, channel_).refs[end].fifo;
  }

  // How many chunks pass an end before the call's chunk `index`.
  static COLLC_DEVICE uint64_t passed_before(const FifoEnd &end, uint64_t index) { return end.position + index * end.turns; }

  // There are fewer than 2^16 slots: their number is divided digit by digit, in 32 bits, where it is not a power of two.
  static COLLC_DEVICE uint32_t slot_number(const FifoEnd &end, uint64_t passed) {
    const uint32_t slots = end.nslots, low = static_cast<uint32_t>(passed);
    if ((slots & (slots - 1)) == 0) return low & (slots - 1);
    uint32_t rest = static_cast<uint32_t>(passed >> 32) % slots;
    rest = (rest << 16 | low >> 16) % slots;
    return (rest << 16 | (low & 0xffff)) % slots;
  }
  static COLLC_DEVICE char *slot_of(const FifoEnd &end, uint64_t passed) {
    return end.slots + static_cast<uint64_t>(slot_number(end, passed)) * end.slot_bytes;
  }

  // What a writer waits for: that the chunk which was in the slot before has been read.
  static COLLC_DEVICE uint64_t freed_for(const FifoEnd &end, uint64_t passed) {
    return passed < end.nslots ? 0 : passed + 1 - end.nslots;
  }

  // Tells the other ends of a step's FIFOs that the chunk is read and, if `announces`, that it is written. By the last warp,
  // after a barrier: what was read first, because it waits for nothing; then all that was written, behind one fence of the
  // warp (of more than kWarp FIFOs one for each kWarp). `bytes`: of the chunk that is announced, for couriers.
  COLLC_DEVICE void publish_counters(const Step &step, const FifoRef *recv, const Chunk &chunk, [[maybe_unused]] bool announces,
                                     [[maybe_unused]] uint64_t bytes = 0) {
    const uint32_t first = (thread_count() / kWarp - 1) * kWarp;
    if (thread_index() < first) return;
    const uint32_t lane = thread_index() - first;
#pragma unroll 1
    for (uint32_t i = lane; i < step.nrecv; i += kWarp) {
      const FifoEnd &end = ends_[recv[i].fifo];
      free_slot(end.publish_to, passed_before(end, chunk.index) + 1);
    }
    if (!announces) return;
#pragma unroll 1
    for (uint32_t i = step.nrecv + lane; i < step.nrecv + step.nsend; i += kWarp) {
      const FifoEnd &end = ends_[recv[i].fifo];
      if (end.chunk_bytes != nullptr)
        store(end.chunk_bytes + slot_number(end, passed_before(end, chunk.index)) * kWordsPerLine, bytes);
      flag_store(end.publish_to, passed_before(end, chunk.index) + 1);
    }
  }

  // `reads`: for chunks that were written, not for slots that were freed. What `seen` says was acquired when it was seen.
  COLLC_DEVICE bool wait_for(FifoEnd &end, uint64_t need, bool reads, const Step &step, uint32_t end_number) {
    if (end.seen >= need) return true;
    uint64_t have = flag_poll(end.wait_on);
    const uint64_t start = have >= need ? 0 : start_of_wait();
#pragma unroll 1
    for (uint32_t spins = 1; have < need; ++spins) {
      backoff(spins);
      have = flag_poll(end.wait_on);
      if (have < need && spins % kSpinsPerLook == 0 && given_up(start, step, end_number, have, need)) return false;
    }
    if (reads) flag_acquire(end.wait_on);
    end.seen = have;
    return true;
  }

  // How many received chunks are reduced before the own input.
  static COLLC_DEVICE uint32_t own_at(const Step &step) { return step.input_at; }

  COLLC_DEVICE uint64_t start_of_wait() const { return launch_.timeout_ns == 0 ? 0 : clock_ns(); }

  // Looks whether a wait has to end. One thread of a block may overwrite another's report; each is true, but a thread
  // that was only aborted keeps the report of the one that timed out first and thereby stopped the whole rank.
  COLLC_DEVICE bool given_up(uint64_t start, const Step &step, uint32_t end_number, uint64_t have, uint64_t need) {
    ReportState why = ReportState::kNone;
    if (host_load(state_.abort_flag) != 0)
      why = ReportState::kAborted;
    else if (launch_.timeout_ns != 0 && clock_ns() - start > launch_.timeout_ns)
      why = ReportState::kTimedOut;
    if (why == ReportState::kNone) return false;
    Report &report = state_.reports[channel_];
    if (why == ReportState::kAborted && host_load(&report.state) != 0) return true;
    report.peer = home_number(end_number);
    report.program = launch_.program;
    report.step = number_of(step);
    report.have = have;
    report.need = need;
    host_store(&report.state, static_cast<uint32_t>(why));
    if (why == ReportState::kTimedOut) host_store(state_.abort_flag, 1);
    return true;
  }

  const RankState &state_;
  const Launch &launch_;
  FifoEnd *ends_;
  uint32_t channel_;
  const Step *steps_;
  char **slots_;
};

}  // namespace collc::cuda
