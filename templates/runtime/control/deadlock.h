// Ranks that wait only for each other will wait forever: their calls do not match.
//
// A call log shows that two collectives differ, but not that one rank receives what no rank sends while another is in a
// collective. So a rank that goes to sleep publishes which ranks it waits for, and the count of its bell when it last looked
// without success. A rank that does something for a sleeping rank rings its bell after that. If each rank of a sleeping set
// waits only for others of the set, and no bell has rung since, the set can never proceed. Ranks that are awake pay nothing.
#pragma once
#include <vector>

#include "control/segment.h"

namespace collc {

// The call that a rank is in, as in a CallRecord.
struct InCall {
  uint64_t what = 0, count = 0;
};

// A rank's word on whom it waits for.
class SleepNote {
 public:
  SleepNote(Segment &segment, uint32_t rank) : segment_(segment), asleep_(segment.line(rank).asleep) {}
  // Waits in a call for some of `ranks` (a flag each), with its bell, that of rank `bell`, at `heard`.
  void say(const std::vector<bool> &ranks, uint32_t bell, uint32_t heard, const InCall &call);
  // Waits no more.
  void withdraw();

 private:
  Segment &segment_;
  Asleep &asleep_;
};

// ncclInvalidUsage that names `rank` and another, with their calls, if they wait for each other for ever.
Status find_deadlock(Segment &segment, uint32_t rank);

}  // namespace collc
