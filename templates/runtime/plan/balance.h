// Chooses how much of a program's calls each path class (nvlink, pcie, net) carries, from the times that the classes took. This
// is only the policy: it knows no ranks and reads no clock. On rank 0, control/balancer.h asks it after each timed call, one
// policy per program, and makes all ranks agree on its proposals. It is not thread-safe, and no function blocks.
//
// Model. A class that carries x bytes takes (x + a) / r. Here r is its rate, and a is the fixed cost of its path before and
// after the data, for example the depth of a tree in chunks. The cost is counted in bytes, so it does not depend on the rate,
// and two calls with different shares determine it.
//
// Steps. The policy proposes a step if one class was the slowest in both of the last two calls, and the fastest class took less
// time in both by more than kMinGapRatio. The new weights let all classes end together, after T = (s + sum of a) / (sum of r)
// for a call of s bytes (Blink, equation 8). The shorter of the two times of a class counts, because a disturbance only makes a
// call longer. The step is halved if the step before made another class the slowest and left the gap about as large (as in
// FlexLink's algorithm 1), and if the gap is small. A class that would get less than kMinShare gets nothing.
//
// Trials. Classes that share a resource that no graph shows may be slower together than the fastest class by itself. So from
// time to time a few calls run over this class only (a solo trial), and one call gives a class of weight 0 a small share again
// (a probe). Intervals between trials grow up to kMaxInterval calls. A trial is compared with other calls of its size, because
// a job may alternate between sizes.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "collc/step_program.h"

namespace collc {

// COLLC_BALANCE.
enum class Balance : uint32_t {
  kNever = 0,  // "0"
  kDefault = 1,  // "1" or not set: weights of copies change at any time, weights of reductions only during the warm-up
  kAlways = 2,  // "always": weights of reductions also change at any time, so equal calls may differ in their last bits
  kRandom = 3,  // "random:SEED", for tests: weights keep changing at random, whatever the times are
};

// Sets the mode, and the seed for Balance::kRandom. Fails with ncclInvalidUsage if the variable has another form.
Status read_balance(Balance *balance, uint32_t *seed);

// Returns "COLLC_BALANCE=0" and the like; "COLLC_BALANCE=1" also if the variable is not set.
const char *show_balance(Balance balance);

// Returns text such as "nvlink 67%, pcie 33%".
std::string show_shares(uint32_t weights);

// The times of one call, as the ranks measured them.
struct CallTimes {
  uint32_t weights = 0;  // packed as in plan/weights.h
  uint64_t bytes = 0;
  double ns[kClasses] = {};  // from the start of the call until the class had done its part; 0 if it carried nothing
};

// A proposal of the policy.
struct WeightChange {
  uint32_t weights = 0;  // 0: no proposal
  uint32_t calls = 0;  // length of a trial in calls of the program; then the old weights return; 0: a lasting change
  std::string reason;  // for the log
};

// The total times of the last kCalls calls that a policy recorded, each with the weights of its time.
class CallHistory {
 public:
  void record(const CallTimes &call);
  uint64_t count() const { return count_; }  // calls recorded so far

  // Returns the shorter time, in ns, of the last two stored calls of this size and weights; 0 if there is none.
  double usual_ns(uint64_t bytes, uint32_t weights) const;
  // Returns whether a stored call before the last one had this size and weights.
  bool has_earlier(uint64_t bytes, uint32_t weights) const;

 private:
  static constexpr uint64_t kCalls = 16;
  struct Entry {
    uint64_t bytes = 0;
    uint32_t weights = 0;
    double ns = 0;
  };
  // Returns the entry recorded `age` calls before the last one.
  const Entry &entry(uint64_t age) const { return entries_[(count_ - age) % kCalls]; }

  Entry entries_[kCalls];  // a ring; call number n is entry n % kCalls
  uint64_t count_ = 0;
};

// The fixed cost of each class in bytes, the `a` of the model.
class PathCosts {
 public:
  double cost(uint32_t part) const { return costs_[part]; }
  // Stores the bytes and the time of a class before a step.
  void remember(uint32_t part, double bytes, double ns);
  // Updates the cost from the bytes and the time after the step, if they and the stored pair are known, the bytes changed by
  // more than kMinShareChange, and more bytes took more time. Forgets the stored pair.
  void learn(uint32_t part, double bytes, double ns);

 private:
  double costs_[kClasses] = {}, stored_bytes_[kClasses] = {}, stored_ns_[kClasses] = {};  // stored_ns_ 0: no pair
};

class BalancePolicy {
 public:
  // `program_weights` are the weights in the tables; a class with weight 0 there never gets a share. `weights` apply at the
  // start.
  BalancePolicy(uint32_t program_weights, uint32_t weights);

  // Takes the times of a call and returns a proposal. The proposal takes effect only when adopt() is called; reject() must be
  // called if the ranks refuse it.
  WeightChange observe(const CallTimes &call);
  void adopt(const WeightChange &change);
  // The ranks keep their weights. The policy records 4 further calls before it proposes again. This number doubles with each
  // further rejection, up to kMaxInterval. adopt() starts over.
  void reject();

  // Sets the weight of failed classes (one bit each) to 0 forever. If no weight is left, the other classes get the program's
  // weights; if the program has no other class, nothing changes.
  void remove(uint32_t classes);

  uint32_t weights() const { return weights_; }

 private:
  using Shares = std::array<double, kClasses>;  // parts of a call; they add up to 1
  enum class TrialKind { kSolo, kProbe };
  struct Gap;

  // Counts are calls in history_.
  struct Schedule {
    uint64_t next_solo, next_probe;
    uint64_t solo_interval, probe_interval;
    uint32_t last_probed = 0;  // class of the last probe
  };
  struct Trial {
    // Takes a call of the trial; `usual_ns` is the usual time of calls of its size. Returns true if the trial is complete.
    bool add(const CallTimes &call, double usual_ns);

    WeightChange change;  // weights 0: no trial runs
    CallTimes best;  // the call with the smallest slowdown
    double slowdown = 0;  // time of `best` divided by its usual time
    uint32_t calls = 0;  // calls of the trial that were compared
    uint32_t misses = 0;  // calls with other weights, or of a size without a usual time
  };
  // The last step.
  struct StepState {
    uint32_t slowest = kClasses;  // the slowest class; kClasses if there was no step since calls became even
    double gain = 1;  // part of the computed change that the step makes, before the limit for small gaps
    double gap = 1;  // Gap::ratio before the step
  };

  static Gap find_gap(const CallTimes &first, const CallTimes &second);
  // The next functions describe the last two calls.
  double best_ns(uint32_t part) const;  // the shorter time of the class
  double carried_bytes(uint32_t part) const;  // bytes of the class in the call with the shorter time
  double rate(uint32_t part) const;  // bytes per ns, with the fixed cost counted as bytes; 0 if the class carried nothing
  uint32_t fastest_alone() const;
  WeightChange step(const Gap &gap);
  Shares even_shares(double bytes, double gain, Shares shares) const;
  WeightChange begin_trial();
  WeightChange begin_probe();
  WeightChange begin_solo(uint32_t part);
  WeightChange judge_trial();
  WeightChange judge_solo(const Trial &trial);
  WeightChange judge_probe(const Trial &trial);

  uint32_t program_weights_;
  uint32_t weights_;
  CallTimes calls_[2];  // the last two recorded calls, the last one second; each had the weights_ of its time
  CallHistory history_;
  PathCosts costs_;
  StepState step_;
  uint32_t even_calls_ = 0;  // consecutive calls without a gap
  Trial trial_;
  TrialKind trial_kind_ = TrialKind::kSolo;  // of the running trial, or of the trial proposed last
  Schedule schedule_;
  uint64_t quiet_until_ = 0;  // the policy proposes nothing below this history_.count()
  uint64_t quiet_calls_;  // length of the last pause after a rejection
};

}  // namespace collc
