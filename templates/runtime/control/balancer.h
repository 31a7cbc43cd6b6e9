// One rank's part in balancing the path classes of a communicator. It decides when the weights of a program change, on all
// ranks in the same call (agreement.h), and publishes the times of this rank's calls. Rank 0 leads: it reads the times of all
// ranks, asks the policy (plan/balance.h) and proposes.
//
// The bits of a reduction depend on its weights. So a reduction keeps its weights after call kWarmUp of its program, unless
// COLLC_BALANCE=always: every rank refuses later changes, by its count of the program's calls, which is equal on all ranks.
//
// The thread that runs a rank calls its object before and after each call. No function blocks; the caller repeats
// may_start().
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
  static constexpr uint64_t kLeastTimed = uint64_t{1} << 20;  // a call is timed from this size on: count times element size

  // Returns null if nothing can be balanced: no program is split into classes; the user has fixed the weights; or the ranks
  // are on several machines, which share no segment. `tuned`: weights at the start, by program of the allocation; 0 or an
  // empty vector means the weights of the tables. `one_clock`: all ranks report times of one clock; otherwise each rank
  // reports times since its begin of the call, by its own clock.
  static std::unique_ptr<Balancer> make(Segment &segment, const Tables &tables, const Placement &placement, uint32_t rank,
                                        const Overrides &overrides, const std::vector<uint32_t> &tuned, bool one_clock);
  Balancer(Segment &segment, const Tables &tables, const Allocation &allocation, uint32_t rank, const Overrides &overrides,
           const std::vector<uint32_t> &tuned, bool one_clock);

  // Call before each call that runs a program, in their order. Returns false if the call has to wait for other ranks; call it
  // again then.
  bool may_start(uint64_t call);
  // Returns true while may_start() returns false.
  bool is_waiting() const { return waiting_; }
  // Refuses for all ranks, which keeps the weights and ends the wait. `why`, for the log: "rank 3 has died".
  void give_up(const std::string &why);
  // Calls give_up() if ranks have not answered. For a call that has waited long enough.
  void give_up_on_silent();

  // Returns the weights of a call that starts; call it once for each. `lost` has a bit for each class that the call must not
  // use (control/losses.h).
  uint32_t start(const Program &program, uint64_t call, uint64_t bytes, uint32_t lost);
  // Returns whether the ranks time the call of the last start().
  bool times() const { return times_; }
  // Publishes when a timed call began on this rank and when each class had done its part, in ns; 0 if the class carried
  // nothing. `begun` 0 means that the times are unknown, so the call does not count.
  void tell(uint64_t call, uint64_t begun, const uint64_t (&ended)[kClasses]);

 private:
  struct State {
    uint32_t own = 0;  // weights of the tables; 0: the program is not split into classes
    uint32_t weights = 0;
    uint32_t trial = 0, trial_calls = 0;  // weights of the next trial_calls calls
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
  // The members below are used on rank 0 only.
  std::vector<BalancePolicy> policies_;
  std::deque<Pending> pending_;  // timed calls whose times some ranks have not published yet
  WeightChange asked_;  // the proposed change; asked_for_ is its program
  uint32_t asked_for_ = 0;
  uint64_t drawn_;  // state of the generator of random weights
};

}  // namespace collc
