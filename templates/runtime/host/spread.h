// Spreads ranks that share cores evenly over them. The system takes long for that: of 8 ranks on 2 cores, 6 may stay on one
// core for tenths of a second, while the two others poll and yield. A small call takes as many turns as the fuller core has
// ranks: with 6 and 2 ranks about twice the time of 4 and 4.
//
// Each rank publishes at every call the core that it runs on. If a core has at least two ranks more than another, the last of
// its ranks moves there, if it may. Afterwards it may use the same cores as before. The system may move it back, for example
// because of other work on that core, so after every move a rank looks half as often.
//
// Owner: HostRank. Threads: the one that makes calls. No call blocks.
#pragma once
#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "control/segment.h"

namespace collc {

// Cores beyond have no number in a cpu_set_t.
constexpr uint32_t kMostCores = CPU_SETSIZE;

inline bool is_last(const uint32_t *cores, uint32_t nranks, uint32_t rank) {
  return std::find(cores + rank + 1, cores + nranks, cores[rank]) == cores + nranks;
}

// The core that this rank has to move to; kMostCores: none. `cores`: where each rank was last seen, those from kMostCores on
// unknown.
inline uint32_t core_to_move_to(const uint32_t *cores, uint32_t nranks, uint32_t rank, const cpu_set_t &allowed) {
  const uint32_t mine = cores[rank];
  if (mine >= kMostCores || !is_last(cores, nranks, rank)) return kMostCores;
  uint16_t ranks_on[kMostCores] = {};
  for (uint32_t r = 0; r < nranks; ++r)
    if (cores[r] < kMostCores) ++ranks_on[cores[r]];
  uint32_t least = mine;
  for (uint32_t core = 0; core < kMostCores; ++core)
    if (CPU_ISSET(core, &allowed) && ranks_on[core] < ranks_on[least]) least = core;
  return ranks_on[least] + 2 <= ranks_on[mine] ? least : kMostCores;
}

// Of one rank, which is the only one of its thread.
class Spread {
 public:
  // At the begin of a call.
  void look(Segment &segment, uint32_t rank) {
    const int64_t now = now_us();
    if (now < next_us_) return;
    const bool first = next_us_ == 0;
    next_us_ = now + every_us_;
    if (!first) move(segment, rank);
  }

 private:
  static constexpr int64_t kEveryUs = 1000, kMostUs = 1000000;

  void move(Segment &segment, uint32_t rank) {
    const int core = sched_getcpu();
    if (core < 0 || segment.nranks() > Asleep::kMostRanks) return;
    uint32_t cores[Asleep::kMostRanks];
    for (uint32_t r = 0; r < segment.nranks(); ++r) cores[r] = segment.line(r).core.load(std::memory_order_relaxed);
    cores[rank] = static_cast<uint32_t>(core);
    cpu_set_t allowed;
    if (!is_last(cores, segment.nranks(), rank) || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    const uint32_t to = core_to_move_to(cores, segment.nranks(), rank, allowed);
    if (to == kMostCores) return;
    every_us_ = std::min(2 * every_us_, kMostUs);
    cpu_set_t one, now;
    CPU_ZERO(&one);
    CPU_SET(to, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return;
    segment.line(rank).core.store(to, std::memory_order_relaxed);
    // Unless somebody else has said meanwhile where it may run.
    if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &one))
      static_cast<void>(sched_setaffinity(0, sizeof allowed, &allowed));
  }

  int64_t next_us_ = 0, every_us_ = kEveryUs;
};

}  // namespace collc
