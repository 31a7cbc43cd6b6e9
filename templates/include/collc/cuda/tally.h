// Measures where the time of a channel goes: waiting for peers, copying, reducing. Only compiled with COLLC_COUNTERS (`collc
// compile --counters`).
//
// The first thread of a block declares what it turns to, and the time until it turns to something else counts for this
// activity. So the sums add up to the time from a block's first step to its last. Waits of this thread within a chunk of LL
// and LL128 count as waiting; barriers for other warps count for the activity of the step. The sums are in shared memory
// during a call, because the kernels have no registers to spare, and are added to the rank's sums in device memory at its
// end.
#pragma once
#include "collc/cuda/device.h"
#include "collc/cuda/layout.h"

namespace collc::cuda {

#if defined(COLLC_COUNTERS)

struct Tally {
  uint64_t spent[kActivities];  // ticks
  uint64_t since;               // when the current activity began
  uint64_t began_ns;
  Activity activity;
};
static_assert(sizeof(Tally) <= kTallyBytes, "device.h reserves its memory");

COLLC_DEVICE Tally &tally() { return *reinterpret_cast<Tally *>(tally_memory()); }

COLLC_DEVICE void begin_tally() {
  if (thread_index() != 0) return;
  Tally &mine = tally();
  for (uint32_t a = 0; a < kActivities; ++a) mine.spent[a] = 0;
  mine.activity = Activity::kWaiting;
  mine.began_ns = clock_ns();
  mine.since = ticks();
}

// Returns the previous activity.
COLLC_DEVICE Activity turn_to(Activity next) {
  if (thread_index() != 0) return next;
  Tally &mine = tally();
  const Activity before = mine.activity;
  const uint64_t now = ticks();
  mine.spent[static_cast<uint32_t>(before)] += now - mine.since;
  mine.since = now;
  mine.activity = next;
  return before;
}

COLLC_DEVICE void end_tally(const RankState &state, uint32_t channel) {
  if (thread_index() != 0) return;
  turn_to(Activity::kWaiting);
  const Tally &mine = tally();
  ChannelTicks &sums = state.ticks[channel];
  for (uint32_t a = 0; a < kActivities; ++a) sums.spent[a] += mine.spent[a];
  sums.ns += clock_ns() - mine.began_ns;
}

// A protocol whose steps are counted.
template <class Verbs>
class Counted : public Verbs {
 public:
  using Verbs::Verbs;

  COLLC_DEVICE Progress wait(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    turn_to(Activity::kWaiting);
    return Verbs::wait(step, recv, send, chunk);
  }
  COLLC_DEVICE void move(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share,
                         const Chunk &chunk) {
    const uint32_t sources = step.nrecv + ((step.flags & kInput) != 0 ? 1 : 0);
    turn_to(sources > 1 ? Activity::kReducing : Activity::kCopying);
    Verbs::move(step, recv, send, share, chunk);
  }
};

#else

COLLC_DEVICE void begin_tally() {}
COLLC_DEVICE Activity turn_to(Activity next) { return next; }
COLLC_DEVICE void end_tally(const RankState &, uint32_t) {}
template <class Verbs>
using Counted = Verbs;

#endif

}  // namespace collc::cuda
