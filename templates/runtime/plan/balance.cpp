#include "plan/balance.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/environment.h"
#include "plan/weights.h"

namespace collc {
namespace {

// No GPU has run this policy. tests/runtime/balance_policy.cpp checks its values on simulated machines, whose times vary by up
// to 3% and are three times as long in 2% of cases; after a change of a value, it must still pass.
constexpr double kMinGapRatio = 0.08;     // a step needs this gap, as a part of the slowest class's time
constexpr double kSmallGapRatio = 0.2;    // below this gap a step is at most half, because the gap may be noise
constexpr double kMinGain = 0.25;         // a step makes at least this part of the computed change
constexpr double kSameGapRatio = 1.25;    // a gap up to this times the last one has not grown
constexpr double kMinShareChange = 0.2;   // a cost is learned only if the bytes of the class changed by more than this part
constexpr double kMaxCostRatio = 0.5;     // the fixed cost of a class is at most this part of the bytes that it carried
constexpr double kMinShare = 1.0 / 64;    // of a call; a class with less gets nothing
constexpr double kProbeShare = 1.2 * kMinShare;  // of a class in a probe
constexpr double kMaxProbeSlowdown = 1.01;       // a class is kept if the probe took at most this times the usual time
constexpr double kMaxProbeTimeRatio = 0.9;       // and if the class took at most this times the time of the others
constexpr double kMinProbeRateRatio = 1.05;      // a class that carries its part faster by this factor is tried by itself
constexpr double kBadSoloSlowdown = 1.15;        // a solo trial this slow ends at once, and the next one comes later
constexpr double kWeightSum = 250;               // new weights add up to about this; one weight is at most 255
constexpr uint32_t kFirstLookCalls = 1, kSecondLookCalls = 2;  // calls of a solo trial; a probe has one look
constexpr uint32_t kMaxMisses = 8;                             // a trial with more Trial::misses ends without a result
constexpr uint32_t kMinEvenCalls = 2;                          // consecutive calls without a gap before a trial starts
// In calls of the history.
constexpr uint64_t kSettleCalls = 8;  // before the first solo trial, and from an adopted trial to one of the other kind
constexpr uint64_t kFirstSoloInterval = 16;
constexpr uint64_t kFirstProbeInterval = 32;
constexpr uint64_t kMaxInterval = 4096;
constexpr uint64_t kFirstQuietCalls = 2;

double share_of(uint32_t weights, uint32_t part) {
  uint32_t sum = 0;
  for (uint32_t c = 0; c < kClasses; ++c) sum += weight_of(weights, c);
  return sum == 0 ? 0 : static_cast<double>(weight_of(weights, part)) / sum;
}

// `shares` add up to 1. A share below kMinShare gets weight 0.
uint32_t pack_shares(const std::array<double, kClasses> &shares) {
  uint32_t weights = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (shares[c] >= kMinShare) weights |= pack_weight(static_cast<uint32_t>(std::lround(shares[c] * kWeightSum)), c);
  return weights;
}

uint32_t count_classes(uint32_t weights) {
  uint32_t count = 0;
  for (uint32_t c = 0; c < kClasses; ++c) count += weight_of(weights, c) != 0 ? 1 : 0;
  return count;
}

// Returns all bits of the weights that are not 0.
uint32_t mask_of(uint32_t weights) {
  uint32_t mask = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (weight_of(weights, c) != 0) mask |= pack_weight(0xff, c);
  return mask;
}

double weight_sum(uint32_t weights) {
  double sum = 0;
  for (uint32_t c = 0; c < kClasses; ++c) sum += weight_of(weights, c);
  return sum;
}

double total_ns(const CallTimes &call) { return *std::max_element(call.ns, call.ns + kClasses); }

uint64_t next_interval(uint64_t interval) { return std::min(2 * interval, kMaxInterval); }

}  // namespace

Status read_balance(Balance *balance, uint32_t *seed) {
  const char *const text = read_text("COLLC_BALANCE");
  *balance = text != nullptr && std::strcmp(text, "0") == 0 ? Balance::kNever : Balance::kDefault;
  if (text == nullptr || *balance == Balance::kNever) return {};
  char *end = nullptr;
  if (std::strncmp(text, "random:", 7) == 0 && text[7] >= '0' && text[7] <= '9') {
    *seed = static_cast<uint32_t>(std::strtoul(text + 7, &end, 10));
    *balance = Balance::kRandom;
    if (*end == '\0') return {};
  }
  *balance = std::strcmp(text, "always") == 0 ? Balance::kAlways : Balance::kDefault;
  if (*balance == Balance::kAlways || std::strcmp(text, "1") == 0) return {};
  return fail(ncclInvalidUsage, "COLLC_BALANCE=%.60s is none of 0, 1, always and random:SEED", text);
}

const char *show_balance(Balance balance) {
  if (balance == Balance::kNever) return "COLLC_BALANCE=0";
  if (balance == Balance::kRandom) return "COLLC_BALANCE=random";
  return balance == Balance::kDefault ? "COLLC_BALANCE=1" : "COLLC_BALANCE=always";
}

std::string show_shares(uint32_t weights) {
  std::string text;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (const double share = share_of(weights, c); share > 0)
      text += (text.empty() ? "" : ", ") + format("%s %.0f%%", class_name(c), 100 * share);
  return text;
}

void CallHistory::record(const CallTimes &call) {
  ++count_;
  entries_[count_ % kCalls] = {call.bytes, call.weights, total_ns(call)};
}

double CallHistory::usual_ns(uint64_t bytes, uint32_t weights) const {
  double shortest = 0;
  for (uint64_t age = 0, matches = 0; age < kCalls && matches < 2; ++age) {
    const Entry &call = entry(age);
    if (call.bytes != bytes || call.weights != weights) continue;
    shortest = matches++ == 0 ? call.ns : std::min(shortest, call.ns);
  }
  return shortest;
}

bool CallHistory::has_earlier(uint64_t bytes, uint32_t weights) const {
  for (uint64_t age = 1; age < kCalls; ++age)
    if (entry(age).bytes == bytes && entry(age).weights == weights) return true;
  return false;
}

void PathCosts::remember(uint32_t part, double bytes, double ns) {
  stored_bytes_[part] = bytes;
  stored_ns_[part] = ns;
}

void PathCosts::learn(uint32_t part, double bytes, double ns) {
  const double more_bytes = bytes - stored_bytes_[part], more_ns = ns - stored_ns_[part];
  const bool has_pairs = stored_ns_[part] > 0 && ns > 0;
  // More bytes must have taken more time, and fewer bytes less; otherwise the rate has changed.
  if (has_pairs && std::abs(more_bytes) > kMinShareChange * bytes && more_bytes * more_ns > 0) {
    // Both pairs have one rate: (bytes + cost) / ns = (stored_bytes + cost) / stored_ns.
    const double cost = (bytes * stored_ns_[part] - stored_bytes_[part] * ns) / more_ns;
    costs_[part] = (costs_[part] + std::clamp(cost, 0.0, kMaxCostRatio * bytes)) / 2;
  }
  stored_ns_[part] = 0;
}

// The difference between the slowest and the fastest class that carry something.
struct BalancePolicy::Gap {
  uint32_t slowest = kClasses, fastest = kClasses;  // in the second call
  double ratio = 0;  // 1 - fastest time / slowest time, the smaller value of both calls; 0 if their slowest classes differ
};

BalancePolicy::Gap BalancePolicy::find_gap(const CallTimes &first, const CallTimes &second) {
  Gap gap;
  double ratio = 1;
  uint32_t previous_slowest = kClasses;
  for (const CallTimes *call : {&first, &second}) {
    gap.slowest = gap.fastest = kClasses;
    for (uint32_t c = 0; c < kClasses; ++c) {
      if (call->ns[c] <= 0) continue;
      if (gap.slowest == kClasses || call->ns[c] > call->ns[gap.slowest]) gap.slowest = c;
      if (gap.fastest == kClasses || call->ns[c] < call->ns[gap.fastest]) gap.fastest = c;
    }
    if (gap.slowest == kClasses || (previous_slowest != kClasses && previous_slowest != gap.slowest)) return gap;
    previous_slowest = gap.slowest;
    ratio = std::min(ratio, 1 - call->ns[gap.fastest] / call->ns[gap.slowest]);
  }
  gap.ratio = ratio;
  return gap;
}

BalancePolicy::BalancePolicy(uint32_t program_weights, uint32_t weights)
    : program_weights_(program_weights),
      weights_(weights),
      schedule_{kSettleCalls, kFirstProbeInterval, kFirstSoloInterval, kFirstProbeInterval},
      quiet_calls_(kFirstQuietCalls) {}

double BalancePolicy::best_ns(uint32_t part) const { return std::min(calls_[0].ns[part], calls_[1].ns[part]); }

double BalancePolicy::carried_bytes(uint32_t part) const {
  const CallTimes &call = calls_[0].ns[part] < calls_[1].ns[part] ? calls_[0] : calls_[1];
  return share_of(weights_, part) * static_cast<double>(call.bytes);
}

double BalancePolicy::rate(uint32_t part) const {
  return best_ns(part) > 0 ? (carried_bytes(part) + costs_.cost(part)) / best_ns(part) : 0;
}

// Returns the class that would end first if it carried the whole last call.
uint32_t BalancePolicy::fastest_alone() const {
  uint32_t fastest = 0;
  double highest = 0;  // calls per ns
  for (uint32_t c = 0; c < kClasses; ++c) {
    const double speed = rate(c) / (static_cast<double>(calls_[1].bytes) + costs_.cost(c));
    if (speed <= highest) continue;
    highest = speed;
    fastest = c;
  }
  return fastest;
}

WeightChange BalancePolicy::observe(const CallTimes &call) {
  if (trial_.change.weights != 0) {
    const double usual_ns = call.weights == trial_.change.weights ? history_.usual_ns(call.bytes, weights_) : 0;
    if (usual_ns > 0) return trial_.add(call, usual_ns) ? judge_trial() : WeightChange();
    if (++trial_.misses > kMaxMisses) trial_ = {};
  }
  if (call.weights != weights_) return {};
  history_.record(call);
  calls_[0] = calls_[1];
  calls_[1] = call;
  const bool have_same_weights = calls_[0].weights == weights_ && calls_[1].weights == weights_;
  if (!have_same_weights || history_.count() < quiet_until_ || trial_.change.weights != 0) return {};
  if (const Gap gap = find_gap(calls_[0], calls_[1]); gap.ratio > kMinGapRatio) {
    even_calls_ = 0;
    return step(gap);
  }
  if (++even_calls_ == kMinEvenCalls) step_ = {};
  return begin_trial();
}

WeightChange BalancePolicy::step(const Gap &gap) {
  for (uint32_t c = 0; c < kClasses; ++c) costs_.learn(c, carried_bytes(c), best_ns(c));
  // The last step went too far if another class is the slowest now and the gap is still about as large. A gap that has grown is
  // no overshoot: the machine has changed, and the step is a whole one.
  const bool has_new_slowest = step_.slowest != kClasses && step_.slowest != gap.slowest;
  const bool is_overshoot = has_new_slowest && gap.ratio > step_.gap / 2 && gap.ratio < kSameGapRatio * step_.gap;
  step_.gain = is_overshoot ? std::max(step_.gain / 2, kMinGain) : 1;
  step_.slowest = gap.slowest;
  step_.gap = gap.ratio;
  Shares shares;
  for (uint32_t c = 0; c < kClasses; ++c) shares[c] = share_of(weights_, c);
  // A class with a small share that is still the slowest has a fixed time, which smaller shares cannot reduce.
  if (shares[gap.slowest] < 2 * kMinShare) shares[gap.slowest] = 0;
  const double bytes = static_cast<double>(std::min(calls_[0].bytes, calls_[1].bytes));
  shares = even_shares(bytes, gap.ratio < kSmallGapRatio ? std::min(step_.gain, 0.5) : step_.gain, shares);
  WeightChange change{pack_shares(shares), 0,
                      format("%s took %.2f times as long as %s", class_name(gap.slowest),
                             best_ns(gap.slowest) / best_ns(gap.fastest), class_name(gap.fastest))};
  if (change.weights == weights_) return {};
  for (uint32_t c = 0; c < kClasses; ++c) costs_.remember(c, carried_bytes(c), best_ns(c));
  return change;
}

// Returns `shares` after a move by the part `gain` towards the shares that let all classes end together. A share of 0 stays 0.
// A share whose target is less than kMinShare becomes 0, whatever `gain` is.
BalancePolicy::Shares BalancePolicy::even_shares(double bytes, double gain, Shares shares) const {
  Shares targets = {};
  for (bool has_dropped = true; has_dropped;) {
    has_dropped = false;
    double costs = 0, rates = 0;
    for (uint32_t c = 0; c < kClasses; ++c) {
      if (shares[c] <= 0) continue;
      costs += costs_.cost(c);
      rates += rate(c);
    }
    const double ns = (bytes + costs) / rates;
    for (uint32_t c = 0; c < kClasses; ++c) {
      targets[c] = shares[c] > 0 ? (rate(c) * ns - costs_.cost(c)) / bytes : 0;
      if (shares[c] <= 0 || targets[c] >= kMinShare) continue;
      shares[c] = 0;
      has_dropped = true;
    }
  }
  double sum = 0;
  for (uint32_t c = 0; c < kClasses; ++c) sum += shares[c] += shares[c] > 0 ? gain * (targets[c] - shares[c]) : 0;
  for (double &share : shares) share /= sum;
  return shares;
}

WeightChange BalancePolicy::begin_trial() {
  if (even_calls_ < kMinEvenCalls || !history_.has_earlier(calls_[1].bytes, weights_)) return {};
  const uint32_t active = count_classes(weights_);
  if (history_.count() >= schedule_.next_probe && active < count_classes(program_weights_)) return begin_probe();
  if (history_.count() >= schedule_.next_solo && active > 1) return begin_solo(fastest_alone());
  return {};
}

// Gives a class of weight 0 a small share in one call. The classes take turns.
WeightChange BalancePolicy::begin_probe() {
  const auto is_candidate = [this](uint32_t part) {
    return weight_of(program_weights_, part) != 0 && weight_of(weights_, part) == 0;
  };
  uint32_t part = (schedule_.last_probed + 1) % kClasses;
  while (!is_candidate(part)) part = (part + 1) % kClasses;
  schedule_.last_probed = part;
  schedule_.probe_interval = next_interval(schedule_.probe_interval);
  schedule_.next_probe = history_.count() + schedule_.probe_interval;
  Shares shares;
  for (uint32_t c = 0; c < kClasses; ++c) shares[c] = (1 - kProbeShare) * share_of(weights_, c);
  shares[part] = kProbeShare;
  trial_kind_ = TrialKind::kProbe;
  return {pack_shares(shares), kFirstLookCalls, format("a trial of %s", class_name(part))};
}

WeightChange BalancePolicy::begin_solo(uint32_t part) {
  schedule_.solo_interval = next_interval(schedule_.solo_interval);
  schedule_.next_solo = history_.count() + schedule_.solo_interval;
  Shares shares = {};
  shares[part] = 1;
  trial_kind_ = TrialKind::kSolo;
  return {pack_shares(shares), kFirstLookCalls, format("a trial of %s alone", class_name(part))};
}

bool BalancePolicy::Trial::add(const CallTimes &call, double usual_ns) {
  const double call_slowdown = total_ns(call) / usual_ns;
  if (calls == 0 || call_slowdown < slowdown) {
    best = call;
    slowdown = call_slowdown;
  }
  return ++calls == change.calls;
}

WeightChange BalancePolicy::judge_trial() {
  const Trial trial = trial_;
  trial_ = {};
  return trial_kind_ == TrialKind::kSolo ? judge_solo(trial) : judge_probe(trial);
}

WeightChange BalancePolicy::judge_solo(const Trial &trial) {
  const double trial_ns = total_ns(trial.best), usual_ns = trial_ns / trial.slowdown;
  const bool is_bad = trial_ns > kBadSoloSlowdown * usual_ns;
  // A bad result of the first trial may be chance; a bad result of a later one doubles the interval once more.
  if (is_bad && schedule_.solo_interval > 2 * kFirstSoloInterval)
    schedule_.solo_interval = next_interval(schedule_.solo_interval);
  schedule_.next_solo = history_.count() + schedule_.solo_interval;
  if (is_bad) return {};
  if (trial.change.calls == kFirstLookCalls)
    return {trial.change.weights, kSecondLookCalls, "another look, as the first took not much longer"};
  if (trial_ns > usual_ns) return {};
  schedule_.next_probe = history_.count() + kSettleCalls;  // the machine may have changed since the last probe
  return {trial.change.weights, 0, format("alone it takes %.0f us, all together %.0f us", trial_ns / 1e3, usual_ns / 1e3)};
}

WeightChange BalancePolicy::judge_probe(const Trial &trial) {
  const double trial_ns = total_ns(trial.best), usual_ns = trial_ns / trial.slowdown;
  double new_ns = 0, old_ns = 0;  // of the slowest class without and with a weight in weights_
  for (uint32_t c = 0; c < kClasses; ++c) {
    double &slowest = weight_of(weights_, c) != 0 ? old_ns : new_ns;
    slowest = std::max(slowest, trial.best.ns[c]);
  }
  const bool is_slower = trial_ns > kMaxProbeSlowdown * usual_ns;
  const uint32_t new_weights = trial.change.weights & ~mask_of(weights_);
  const double new_rate = weight_sum(new_weights) / new_ns;
  const double old_rate = weight_sum(trial.change.weights & mask_of(weights_)) / old_ns;
  // If the classes hinder each other, the new class may still be the better one by itself.
  if (is_slower && count_classes(weights_) == 1 && new_rate > kMinProbeRateRatio * old_rate) {
    trial_kind_ = TrialKind::kSolo;
    return {new_weights, kFirstLookCalls, "a trial of another class alone"};
  }
  if (is_slower || new_ns > kMaxProbeTimeRatio * old_ns) return {};
  schedule_.next_solo = history_.count() + kSettleCalls;
  return {trial.change.weights, 0, format("the new class took %.0f us, the others %.0f us", new_ns / 1e3, old_ns / 1e3)};
}

void BalancePolicy::adopt(const WeightChange &change) {
  quiet_calls_ = kFirstQuietCalls;
  trial_ = {};
  if (change.calls != 0) {
    trial_.change = change;
    return;
  }
  // A class that loses its share now is not probed at once.
  if (count_classes(change.weights) < count_classes(weights_) && schedule_.next_probe < history_.count())
    schedule_.next_probe = history_.count() + schedule_.probe_interval;
  weights_ = change.weights;
  even_calls_ = 0;
}

void BalancePolicy::reject() {
  trial_ = {};
  quiet_calls_ = next_interval(quiet_calls_);
  quiet_until_ = history_.count() + quiet_calls_;
}

void BalancePolicy::remove(uint32_t classes) {
  const uint32_t weights = remove_classes(classes, weights_, program_weights_);
  const uint32_t program_weights = remove_classes(classes, program_weights_, program_weights_);
  if (weights == weights_ && program_weights == program_weights_) return;
  program_weights_ = program_weights;
  weights_ = weights;
  trial_ = {};
  even_calls_ = 0;
}

}  // namespace collc
