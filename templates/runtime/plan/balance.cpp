#include "plan/balance.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/environment.h"
#include "plan/weights.h"

namespace collc {
namespace {

constexpr double kGap = 0.08;        // of the slowest class' time
constexpr double kNear = 0.2;        // up to here a step goes half the way: it may be noise
constexpr double kGrown = 1.25;
constexpr double kTells = 0.2;       // how much less or more a class must carry to show what its way costs
constexpr double kLeast = 1.0 / 64;  // of a call
constexpr double kWorse = 1.01;      // what a call may take with another class, to keep it
constexpr double kFarWorse = 1.15;   // a class alone that takes so long is not tried again soon
constexpr double kMostCost = 0.5;    // of what a class carried
constexpr double kAll = 250;         // weights add up to that, about
constexpr uint32_t kLookCalls = 1, kSureCalls = 2, kMostWaits = 8;

double share_of(uint32_t weights, uint32_t part) {
  uint32_t total = 0;
  for (uint32_t c = 0; c < kClasses; ++c) total += weights >> 8 * c & 0xff;
  return total == 0 ? 0 : static_cast<double>(weights >> 8 * part & 0xff) / total;
}

// Shares that add up to 1, or 0 where one is below kLeast.
uint32_t weights_of(const double (&shares)[kClasses]) {
  uint32_t weights = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (shares[c] >= kLeast) weights |= static_cast<uint32_t>(std::lround(shares[c] * kAll)) << 8 * c;
  return weights;
}

uint32_t active(uint32_t weights) {
  uint32_t count = 0;
  for (uint32_t c = 0; c < kClasses; ++c) count += (weights >> 8 * c & 0xff) != 0 ? 1 : 0;
  return count;
}

// All bits of the weights of its classes.
uint32_t mask_of(uint32_t weights) {
  uint32_t mask = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((weights >> 8 * c & 0xff) != 0) mask |= 0xffu << 8 * c;
  return mask;
}

double weight_sum(uint32_t weights) { return (weights & 0xff) + (weights >> 8 & 0xff) + (weights >> 16 & 0xff); }

double total(const CallTimes &call) { return *std::max_element(call.ns, call.ns + kClasses); }

}  // namespace

Status read_balance(Balance *balance, uint32_t *seed) {
  const char *const text = read_text("COLLC_BALANCE");
  *balance = text != nullptr && std::strcmp(text, "0") == 0 ? Balance::kNever : Balance::kUsual;
  if (text == nullptr || *balance == Balance::kNever) return {};
  char *end = nullptr;
  if (std::strncmp(text, "random:", 7) == 0 && text[7] >= '0' && text[7] <= '9') {
    *seed = static_cast<uint32_t>(std::strtoul(text + 7, &end, 10));
    *balance = Balance::kRandom;
    if (*end == '\0') return {};
  }
  *balance = std::strcmp(text, "always") == 0 ? Balance::kAlways : Balance::kUsual;
  if (*balance == Balance::kAlways || std::strcmp(text, "1") == 0) return {};
  return fail(ncclInvalidUsage, "COLLC_BALANCE=%.60s is none of 0, 1, always and random:SEED", text);
}

const char *show_balance(Balance balance) {
  if (balance == Balance::kNever) return "COLLC_BALANCE=0";
  if (balance == Balance::kRandom) return "COLLC_BALANCE=random";
  return balance == Balance::kUsual ? "COLLC_BALANCE=1" : "COLLC_BALANCE=always";
}

std::string show_shares(uint32_t weights) {
  std::string text;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (const double share = share_of(weights, c); share > 0)
      text += (text.empty() ? "" : ", ") + format("%s %.0f%%", class_name(c), 100 * share);
  return text;
}

// Between the classes that carry something, in both of the last two calls.
struct BalancePolicy::Gap {
  uint32_t slowest = kClasses, fastest = kClasses;
  double size = 0;  // the smaller one of both calls; 0: they do not agree

  Gap(const CallTimes &one, const CallTimes &other) {
    double least = 1;
    uint32_t before = kClasses;
    for (const CallTimes *call : {&one, &other}) {
      slowest = fastest = kClasses;
      for (uint32_t c = 0; c < kClasses; ++c) {
        if (call->ns[c] <= 0) continue;
        if (slowest == kClasses || call->ns[c] > call->ns[slowest]) slowest = c;
        if (fastest == kClasses || call->ns[c] < call->ns[fastest]) fastest = c;
      }
      if (slowest == kClasses || (before != kClasses && before != slowest)) return;
      before = slowest;
      least = std::min(least, 1 - call->ns[fastest] / call->ns[slowest]);
    }
    size = least;
  }
};

BalancePolicy::BalancePolicy(uint32_t own, uint32_t weights) : own_(own), weights_(weights) {}

double BalancePolicy::best(uint32_t part) const { return std::min(times_[0].ns[part], times_[1].ns[part]); }

double BalancePolicy::usual(uint64_t bytes) const {
  double least = 0;
  for (uint64_t i = 0, found = 0; i < kRecent && found < 2; ++i) {
    const auto &call = recent_[(observed_ - i) % kRecent];
    if (call.bytes != bytes || call.weights != weights_) continue;
    least = found++ == 0 ? call.ns : std::min(least, call.ns);
  }
  return least;
}

bool BalancePolicy::repeats() const {
  for (uint64_t i = 1; i < kRecent; ++i)
    if (const auto &call = recent_[(observed_ - i) % kRecent]; call.bytes == times_[1].bytes && call.weights == weights_)
      return true;
  return false;
}

double BalancePolicy::carried(uint32_t part) const {
  const CallTimes &call = times_[0].ns[part] < times_[1].ns[part] ? times_[0] : times_[1];
  return share_of(weights_, part) * static_cast<double>(call.bytes);
}

double BalancePolicy::rate(uint32_t part) const { return best(part) > 0 ? (carried(part) + costs_[part]) / best(part) : 0; }

uint32_t BalancePolicy::fastest() const {
  uint32_t found = 0;
  double most = 0;
  for (uint32_t c = 0; c < kClasses; ++c) {
    const double alone = rate(c) / (static_cast<double>(times_[1].bytes) + costs_[c]);
    if (alone <= most) continue;
    most = alone;
    found = c;
  }
  return found;
}

WeightChange BalancePolicy::observe(const CallTimes &call) {
  if (trial_.weights != 0) {
    const double before = call.weights == trial_.weights ? usual(call.bytes) : 0;
    if (before > 0) {
      const double longer = total(call) / before;
      if (tries_ == 0 || longer < longer_) {
        tried_ = call;
        longer_ = longer;
      }
      if (++tries_ == trial_.calls) return judge_trial();
      return {};
    }
    if (++waits_ > kMostWaits) trial_ = {};  // calls of other sizes have come instead
  }
  if (call.weights != weights_) return {};
  ++observed_;
  times_[0] = times_[1];
  times_[1] = call;
  recent_[observed_ % kRecent] = {call.bytes, call.weights, total(call)};
  if (!has_two() || observed_ < quiet_until_ || trial_.weights != 0) return {};
  if (const Gap gap(times_[0], times_[1]); gap.size > kGap) {
    calm_ = 0;
    return step(gap);
  }
  if (++calm_ == 2) {
    gain_ = 1;
    slowest_ = kClasses;
  }
  return begin_trial();
}

// What the last step has shown: the same rate with another share.
void BalancePolicy::learn() {
  for (uint32_t c = 0; c < kClasses; ++c) {
    const double bytes = carried(c), more = bytes - before_bytes_[c], longer = best(c) - before_ns_[c];
    const bool tells = before_ns_[c] > 0 && best(c) > 0 && std::abs(more) > kTells * bytes && more * longer > 0;
    if (tells) {
      const double cost = (bytes * before_ns_[c] - before_bytes_[c] * best(c)) / longer;
      costs_[c] = (costs_[c] + std::clamp(cost, 0.0, kMostCost * bytes)) / 2;
    }
    before_ns_[c] = 0;
  }
}

WeightChange BalancePolicy::step(const Gap &gap) {
  learn();
  const bool turned = slowest_ != kClasses && slowest_ != gap.slowest;
  // A gap that has grown is no overshoot: the machine has changed.
  gain_ = turned && gap.size > least_ / 2 && gap.size < kGrown * least_ ? std::max(gain_ / 2, 0.25) : 1;
  slowest_ = gap.slowest;
  least_ = gap.size;
  const double bytes = static_cast<double>(std::min(times_[0].bytes, times_[1].bytes));
  const double gain = gap.size < kNear ? std::min(gain_, 0.5) : gain_;
  double shares[kClasses] = {};
  for (uint32_t c = 0; c < kClasses; ++c) shares[c] = share_of(weights_, c);
  // What a class takes for however little it carries does not end with smaller steps.
  if (shares[gap.slowest] < 2 * kLeast) shares[gap.slowest] = 0;
  even_out(bytes, gain, shares);
  WeightChange move{weights_of(shares), 0,
                    format("%s took %.2f times as long as %s", class_name(gap.slowest), best(gap.slowest) / best(gap.fastest),
                           class_name(gap.fastest))};
  if (move.weights == weights_) return {};
  for (uint32_t c = 0; c < kClasses; ++c) {
    before_bytes_[c] = carried(c);
    before_ns_[c] = best(c);
  }
  return move;
}

// Shares under which all classes end together, as far as `gain` goes; one that is 0 stays so, one that would be small
// becomes 0.
void BalancePolicy::even_out(double bytes, double gain, double (&shares)[kClasses]) const {
  double wanted[kClasses] = {};
  for (bool drops = true; drops;) {
    drops = false;
    double costs = 0, rates = 0;
    for (uint32_t c = 0; c < kClasses; ++c) {
      if (shares[c] <= 0) continue;
      costs += costs_[c];
      rates += rate(c);
    }
    const double time = (bytes + costs) / rates;
    for (uint32_t c = 0; c < kClasses; ++c) {
      wanted[c] = shares[c] > 0 ? (rate(c) * time - costs_[c]) / bytes : 0;
      if (shares[c] <= 0 || wanted[c] >= kLeast) continue;
      shares[c] = 0;
      drops = true;
    }
  }
  double sum = 0;
  for (uint32_t c = 0; c < kClasses; ++c) sum += shares[c] += shares[c] > 0 ? gain * (wanted[c] - shares[c]) : 0;
  for (double &share : shares) share /= sum;
}

// A class alone, where classes may hinder each other; a small share for one that carries nothing.
WeightChange BalancePolicy::begin_trial() {
  if (calm_ < 2 || !repeats()) return {};
  double shares[kClasses] = {};
  WeightChange move;
  const bool adds = observed_ >= next_probe_ && active(weights_) < active(own_);
  if (adds) {
    uint32_t missing = (probed_ + 1) % kClasses;  // in turn
    while ((own_ >> 8 * missing & 0xff) == 0 || (weights_ >> 8 * missing & 0xff) != 0) missing = (missing + 1) % kClasses;
    probed_ = missing;
    for (uint32_t c = 0; c < kClasses; ++c) shares[c] = (1 - 1.2 * kLeast) * share_of(weights_, c);
    shares[missing] = 1.2 * kLeast;
    move.why = format("a trial of %s", class_name(missing));
    probe_every_ = std::min(2 * probe_every_, kSeldom);
    next_probe_ = observed_ + probe_every_;
  } else if (observed_ >= next_alone_ && active(weights_) > 1) {
    shares[fastest()] = 1;
    move.why = format("a trial of %s alone", class_name(fastest()));
    alone_every_ = std::min(2 * alone_every_, kSeldom);
    next_alone_ = observed_ + alone_every_;
  } else {
    return {};
  }
  trial_adds_ = adds;
  move.calls = kLookCalls;
  move.weights = weights_of(shares);
  return move;
}

WeightChange BalancePolicy::judge_trial() {
  WeightChange tried = trial_;
  const bool first = trial_.calls == kLookCalls;
  trial_ = {};
  tried.calls = 0;
  const double now = total(tried_), before = now / longer_;
  if (!trial_adds_) {
    // Once may be by chance.
    if (now > kFarWorse * before && alone_every_ > 2 * kAlone) alone_every_ = std::min(2 * alone_every_, kSeldom);
    next_alone_ = observed_ + alone_every_;
    if (now > kFarWorse * before) return {};
    if (first) return {tried.weights, kSureCalls, "another look, as the first took not much longer"};
    if (now > before) return {};
    tried.why = format("alone it takes %.0f us, all together %.0f us", now / 1e3, before / 1e3);
    next_probe_ = observed_ + kSettled;  // the machine may have changed in between
    return tried;
  }
  double added = 0, others = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    ((weights_ >> 8 * c & 0xff) != 0 ? others : added) =
        std::max((weights_ >> 8 * c & 0xff) != 0 ? others : added, tried_.ns[c]);
  // Classes that hinder each other: the new one may be the better one, alone.
  const uint32_t adds = tried.weights & ~mask_of(weights_), stays = tried.weights & mask_of(weights_);
  const double part = weight_sum(adds), rest = weight_sum(stays);
  if (now > kWorse * before && active(weights_) == 1 && part / added > 1.05 * rest / others) {
    trial_adds_ = false;
    return {adds, kLookCalls, "a trial of another class alone"};
  }
  if (added > 0.9 * others || now > kWorse * before) return {};
  next_alone_ = observed_ + kSettled;
  tried.why = format("the new class took %.0f us, the others %.0f us", added / 1e3, others / 1e3);
  return tried;
}

void BalancePolicy::adopt(const WeightChange &move) {
  quiet_ = 2;
  if (move.calls != 0) {
    trial_ = move;
    tries_ = waits_ = 0;
    return;
  }
  if (active(move.weights) < active(weights_) && next_probe_ < observed_) next_probe_ = observed_ + probe_every_;
  weights_ = move.weights;
  trial_ = {};
  calm_ = 0;
}

void BalancePolicy::reject() {
  trial_ = {};
  quiet_ = std::min<uint64_t>(2 * quiet_, kSeldom);
  quiet_until_ = observed_ + quiet_;
}

void BalancePolicy::remove(uint32_t classes) {
  const uint32_t weights = remove_classes(classes, weights_, own_), own = remove_classes(classes, own_, own_);
  if (weights == weights_ && own == own_) return;
  own_ = own;
  weights_ = weights;
  trial_ = {};
  calm_ = 0;
}

}  // namespace collc
