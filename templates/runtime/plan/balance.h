// What share of a program's calls each class of links should carry, by the times that the classes took: the policy alone,
// which knows no ranks and no clock. control/balancer.h has it decide, and the ranks agree.
//
// A class that carried x bytes in t does so at the rate (x + a) / t, where a is what its way costs before and after the
// data, in bytes: a tree's depth in chunks. So a does not change with the rate, and two calls of different shares tell it. Where
// the slowest class of both of the last two calls took longer than the fastest by more than kGap, each class gets what
// its rate says that it carries until all end together, in one step (T = (s + sum of a) / (sum of rates), Blink's equation 8). The
// step is halved where the one before has not made calls more even (as in FlexLink's algorithm 1), and where the gap is
// small. Of both calls the shorter time of a class counts: what disturbs a call only makes it longer. A class that would get
// less than kLeast gets nothing.
//
// Classes that share what no graph shows may be slower together than the fastest of them alone. So now and then a few calls
// try that, and one call gives a class that carries nothing a small share again, seldomer each time that it does not pay. A trial
// is held against calls of its size: a job's sizes may come by turns.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "collc/step_program.h"

namespace collc {

// COLLC_BALANCE.
enum class Balance : uint32_t {
  kNever = 0,  // "0"
  kUsual = 1,  // "1", or not set: shares of copies move at any time, those of reductions during warm-up
  kAlways = 2,  // "always": those of reductions too, so that equal calls may differ in their last bits
  kRandom = 3,  // "random:SEED": for tests, others again and again, whatever was measured
};
// `seed`: of random ones.
Status read_balance(Balance *balance, uint32_t *seed);
const char *show_balance(Balance balance);

// "nvlink 67%, pcie 33%".
std::string show_shares(uint32_t weights);

// A call as the ranks timed it.
struct CallTimes {
  uint32_t weights = 0;  // as step_program.h has them
  uint64_t bytes = 0;
  double ns[kClasses] = {};  // until a class had done all; 0: it carried nothing
};

// What the policy wants to change; none: weights 0.
struct WeightChange {
  uint32_t weights = 0;
  uint32_t calls = 0;  // of the program, then the weights are as before; 0: from now on
  std::string why;
};

class BalancePolicy {
 public:
  // `own`: what the program has in the tables; a class that weighs nothing there never gets a share. `weights`: to begin with.
  BalancePolicy(uint32_t own, uint32_t weights);

  // After a call. What it wants is only asked for: adopt() and keep() say what has become of it.
  WeightChange observe(const CallTimes &call);
  void adopt(const WeightChange &move);
  // The ranks kept their weights: nothing is asked for during the next calls, longer each time.
  void reject();

  // Classes, a bit for each, have failed: they never get a share again.
  void remove(uint32_t classes);

  uint32_t weights() const { return weights_; }

 private:
  struct Gap;
  WeightChange step(const Gap &gap);
  WeightChange judge_trial();
  WeightChange begin_trial();
  double usual(uint64_t bytes) const;  // of the last two calls of that size with these weights, the shorter time; 0: none
  bool repeats() const;  // the last call was not the first one of its size with these weights
  bool has_two() const { return times_[0].weights == weights_ && times_[1].weights == weights_; }
  double best(uint32_t part) const;  // of the last two calls
  double carried(uint32_t part) const;  // bytes of those calls
  double rate(uint32_t part) const;  // of them, per nanosecond
  void learn();
  void even_out(double bytes, double gain, double (&shares)[kClasses]) const;
  uint32_t fastest() const;

  uint32_t own_;
  uint32_t weights_;
  CallTimes times_[2];  // the last two calls
  static constexpr uint64_t kRecent = 16;
  struct {
    uint64_t bytes = 0;
    uint32_t weights = 0;
    double ns = 0;
  } recent_[kRecent];  // calls: what one of the same size took
  uint64_t observed_ = 0;  // calls
  uint32_t calm_ = 0;  // calls in a row without a reason for a step
  uint32_t slowest_ = kClasses;
  double gain_ = 1;  // of the next step
  double least_ = 1;  // the gap of the step before
  // What a class had carried in which time before the last step, and its way's cost in bytes.
  double before_bytes_[kClasses] = {}, before_ns_[kClasses] = {}, costs_[kClasses] = {};
  // A trial: the weights, and the better of its calls so far.
  WeightChange trial_;
  bool trial_adds_ = false;  // gives a class a share again
  uint32_t probed_ = 0;  // the last class that got a share again
  CallTimes tried_;
  double longer_ = 0;  // than usual it took
  uint32_t tries_ = 0, waits_ = 0;
  uint64_t next_alone_ = kSettled, next_probe_ = kProbe, alone_every_ = kAlone, probe_every_ = kProbe;
  uint64_t quiet_until_ = 0, quiet_ = 2;

  static constexpr uint64_t kSettled = 8, kProbe = 32, kAlone = 16, kSeldom = 4096;  // calls
};

}  // namespace collc
