// Detects ranks that wait only for each other, and so forever: their calls do not match.
//
// A call log shows that two collectives differ, but not that one rank receives data that no rank sends while another rank is
// in a collective. So a rank that goes to sleep publishes the ranks that it waits for, and the count of its bell when it last
// looked without success. A rank that does something for a sleeping rank rings the sleeper's bell afterwards. If each rank of
// a set of sleeping ranks waits only for ranks of the set, and none of their bells has rung since, the set can never proceed.
// Ranks that are awake pay nothing.
//
// All stores and loads are sequentially consistent. No function blocks.
#pragma once
#include <vector>

#include "control/segment.h"

namespace collc {

// The call that a rank is in, packed as in a CallRecord.
struct InCall {
  uint64_t what = 0, count = 0;
};

// Publishes which ranks a rank waits for; only the thread that runs the rank uses it.
class SleepNote {
 public:
  SleepNote(Segment &segment, uint32_t rank) : segment_(segment), asleep_(segment.line(rank).asleep) {}
  // Publishes that the rank waits in a call for some of `ranks` (a flag each). The bell of rank `bell` wakes it and had the
  // count `heard` at its last look.
  void say(const std::vector<bool> &ranks, uint32_t bell, uint32_t heard, const InCall &call);
  // Declares that the rank waits no more.
  void withdraw();

 private:
  Segment &segment_;
  Asleep &asleep_;
};

// Fails with ncclInvalidUsage if `rank` is in a set of ranks that wait for each other forever; names this rank and another
// one with their calls.
Status find_deadlock(Segment &segment, uint32_t rank);

}  // namespace collc
