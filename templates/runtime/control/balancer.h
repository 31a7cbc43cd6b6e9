// One rank's part in balancing the classes of links of a communicator: when the weights of a program change, on all ranks
// in the same call (agreement.h), and what the ranks tell of their calls for it. Rank 0 leads: it reads what all have told,
// asks the policy (plan/balance.h) and proposes.
//
// A reduction has the bits of its weights. So its program keeps them from its call kWarmUp + 1 on, unless COLLC_BALANCE says
// always: every rank refuses what would come later, by its own count of the program's calls, which is the same on all.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "control/agreement.h"
#include "control/segment.h"
#include "plan/balance.h"
#include "plan/overrides.h"

namespace collc {

class Balancer {
 public:
  static constexpr uint32_t kWarmUp = 200;                 // calls of a program
  static constexpr uint64_t kLeastTimed = uint64_t{1} << 20;  // bytes of a call (count times element size)

  // Null where nothing is to be balanced: no program is cut into classes, or the user has set the weights, or that they stay; or
  // the ranks are on several machines, which the segment does not join.
  // `tuned`: the weights to begin with, by program of the allocation; those of the tables where it has none.
  // `one_clock`: what the ranks tell of calls is by one clock; else each tells by its own from when it began.
  static std::unique_ptr<Balancer> make(Segment &segment, const Tables &tables, const Placement &placement, uint32_t rank,
                                        const Overrides &overrides, const std::vector<uint32_t> &tuned, bool one_clock);
  Balancer(Segment &segment, const Tables &tables, const Allocation &allocation, uint32_t rank, const Overrides &overrides,
           const std::vector<uint32_t> &tuned, bool one_clock);

  // Before each call that runs a program, in their order. False: it waits for the other ranks; look again.
  bool may_start(uint64_t call);
  // True while may_start() waits.
  bool is_waiting() const { return waiting_; }
  // Keeps the weights of all ranks, and ends the wait. `why`: "rank 3 has died".
  void give_up(const std::string &why);
  // give_up(), where a call has waited long enough: for ranks that have not come.
  void give_up_on_silent();

  // The weights of a call that starts, once for each. `lost`: classes that it does without (control/losses.h).
  uint32_t start(const Program &program, uint64_t call, uint64_t bytes, uint32_t lost);
  // Whether the ranks time the call that was started last.
  bool times() const { return times_; }
  // Tells when a timed call began here and when each class had done its part, in nanoseconds; 0: it carried nothing. `begun` 0:
  // nobody knows, and the call does not count.
  void tell(uint64_t call, uint64_t begun, const uint64_t (&ended)[kClasses]);

 private:
  struct State {
    uint32_t own = 0;  // of the tables; 0: the program is not cut into classes
    uint32_t weights = 0;
    uint32_t trial = 0, trial_calls = 0;  // the weights of its next calls
    uint64_t calls = 0;
  };
  struct Pending {
    uint64_t call, bytes;
    uint32_t program, weights;
  };

  bool agrees(uint64_t subject) const;
  void act(Agreement::Turn turn, uint64_t call);
  void lead();
  WeightChange draw(uint32_t *program);
  bool read(const Pending &pending, CallTimes *times, bool *gone) const;
  void say(const WeightChange &move, uint32_t program, uint64_t call) const;
  void ring_all();
  uint32_t number_of(const Program &program) const { return static_cast<uint32_t>(&program - programs_); }

  Segment &segment_;
  const Program *programs_;
  const uint32_t rank_;
  const Balance balance_;
  const bool one_clock_;
  Agreement agreement_;
  std::vector<State> states_;  // by program of the allocation
  bool waiting_ = false, times_ = false;
  // Of rank 0.
  std::vector<BalancePolicy> policies_;
  std::deque<Pending> pending_;  // timed calls that not all have told of
  WeightChange asked_;  // and of which program
  uint32_t asked_for_ = 0;
  uint64_t drawn_;  // of random weights, the last
};

}  // namespace collc
