// The part that all protocols share: ends of FIFOs, waits for their counters, and the end of a call. It does not depend on
// the element type.
//
// A block runs one channel of one rank. Before a step moves its chunk, the first warp waits, one lane per FIFO end, and
// leaves addresses in shared memory. Afterwards the last warp publishes, so that the next wait does not have to follow the
// release in one warp. A failed wait returns kAborted to all threads. Memory order: device.h.
#pragma once
#include "collc/cuda/device.h"
#include "collc/cuda/layout.h"
#include "collc/step_program.h"

namespace collc::cuda {

// The tables of one channel on one rank, in device memory or copied to shared memory. FifoRef counts from `refs`.
struct ChannelTables {
  const Step *steps;
  const FifoRef *refs;
  FifoEnd *ends;         // FifoRef::fifo counts from here
};

// Selects the reductions that a protocol's code supports: all that a launch may request, or only sums.
struct AnyOperation {
  static COLLC_DEVICE uint32_t operation(const Launch &launch) { return launch.operation; }
};
struct SumsAlone {
  static COLLC_DEVICE uint32_t operation(const Launch &) { return 0; }
};

// Returns the address `units` units behind a rank's state. These addresses depend on nothing that must be loaded first.
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
  // Call after the last step of a call: stores the positions, so that the next call's chunk 0 follows the last chunk of this
  // call.
  COLLC_DEVICE void finish(uint32_t nsteps, const FifoRef *refs, const ShareRange *shares) {
    if (launch_.cached == 0) barrier();  // the last warp may still be reading positions that are changed below
    const uint32_t warps = thread_count() / kWarp, lane = thread_index() % kWarp;
#pragma unroll 1
    for (uint32_t s = thread_index() / kWarp; s < nsteps; s += warps) {
      const Step &step = steps_[s];
      const FifoRef *ref = refs + step.first_ref;
      const uint64_t nchunks = shares[step.share].nchunks;
#pragma unroll 1
      for (uint32_t i = lane; i < step.nrecv + step.nsend; i += kWarp) {
        const FifoEnd &end = ends_[ref[i].fifo];
        // In tables in shared memory, FifoRef::reader is the number of the end in device memory (executor.h).
        FifoEnd &home = ends_at_home(state_, launch_)[launch_.cached != 0 ? ref[i].reader : ref[i].fifo];
        home.position = passed_before(end, nchunks);
        home.seen = end.seen;
      }
    }
  }

 protected:
  // `tables` belong to the channel; `slots` is shared memory for kMaxPeers addresses.
  COLLC_DEVICE Counters(const RankState &state, const Launch &launch, uint32_t channel, const ChannelTables &tables,
                        char **slots)
      : state_(state), launch_(launch), ends_(tables.ends), channel_(channel), steps_(tables.steps), slots_(slots) {}

  // Returns the number of a step that waits. The step need not be in the table (specialised.h), but no other step has its
  // references.
  COLLC_DEVICE uint32_t number_of(const Step &step) const {
    uint32_t number = 0;
    while (steps_[number].first_ref != step.first_ref || steps_[number].nrecv + steps_[number].nsend == 0) ++number;
    return number;
  }

  // Returns the number of an end among the rank's ends in device memory. Loads it each time, because registers are scarce
  // while chunks move.
  COLLC_DEVICE uint32_t home_number(uint32_t end) const {
    if (launch_.cached == 0) return end;
    return tables_at_home(state_, launch_, channel_).refs[end].fifo;
  }

  // Returns how many chunks pass an end before chunk `index` of the call.
  static COLLC_DEVICE uint64_t passed_before(const FifoEnd &end, uint64_t index) { return end.position + index * end.turns; }

  // Returns the slot of a chunk. There are fewer than 2^16 slots. If their number is not a power of two, divides digit by
  // digit in 32 bits.
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

  // Returns the head that a writer waits for: the previous chunk in its slot has been read.
  static COLLC_DEVICE uint64_t freed_for(const FifoEnd &end, uint64_t passed) {
    return passed < end.nslots ? 0 : passed + 1 - end.nslots;
  }

  // Publishes that the chunks of a step were read and, if `announces`, that its chunk was written. The last warp does it,
  // after a barrier. Heads are stored first, because they wait for nothing; then all tails, behind one fence of the warp (one
  // for each kWarp FIFOs). `bytes`: size of the announced chunk, for proxy threads.
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

  // Waits until a counter has reached `need`; returns false if the wait was given up. `reads`: waits for a written chunk, so
  // it acquires; a wait for a free slot does not. `seen` values were acquired when they were stored.
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

  // Returns how many received chunks are reduced before the rank's own input.
  static COLLC_DEVICE uint32_t own_at(const Step &step) { return step.input_at; }

  COLLC_DEVICE uint64_t start_of_wait() const { return launch_.timeout_ns == 0 ? 0 : clock_ns(); }

  // Returns whether a wait must end, and reports why. Another thread of the block may overwrite a report; each report is
  // true. A thread that was only aborted keeps an existing report, because the thread that timed out first has stopped the
  // whole rank.
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
