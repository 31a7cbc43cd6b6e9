#include "plan/balance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/environment.h"
#include "plan/weights.h"

namespace collc {
namespace {

constexpr double kGap = 0.08;        // of the slowest class' time
constexpr double kFar = 0.9;         // from here on a step goes all the way
constexpr double kLeast = 1.0 / 64;  // of a call
constexpr double kPays = 0.99;       // what a class alone may take of the time of all, to replace them
constexpr double kAll = 250;         // weights add up to that, about
constexpr uint32_t kTrialCalls = 2, kMostWaits = 8;

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

double total(const TimedShares &call) { return *std::max_element(call.ns, call.ns + kClasses); }

}  // namespace

Status read_balance(Balance *balance) {
  *balance = Balance::kNever;
  const char *const text = read_text("COLLC_BALANCE");
  if (text == nullptr || std::strcmp(text, "0") == 0) return {};
  *balance = std::strcmp(text, "1") == 0 ? Balance::kUsual : Balance::kAlways;
  if (*balance == Balance::kUsual || std::strcmp(text, "always") == 0) return {};
  return fail(ncclInvalidUsage, "COLLC_BALANCE=%.60s is none of 0, 1 and always", text);
}

const char *show_balance(Balance balance) {
  if (balance == Balance::kNever) return "COLLC_BALANCE=0";
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
struct ShareBalance::Gap {
  uint32_t slowest = kClasses, fastest = kClasses;
  double size = 0;  // the smaller one of both calls; 0: they do not agree

  Gap(const TimedShares &one, const TimedShares &other) {
    double least = 1;
    uint32_t before = kClasses;
    for (const TimedShares *call : {&one, &other}) {
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

ShareBalance::ShareBalance(uint32_t weights) : own_(weights), weights_(weights) {}

double ShareBalance::best(uint32_t part) const { return std::min(times_[0].ns[part], times_[1].ns[part]); }

double ShareBalance::best_total() const { return std::min(total(times_[0]), total(times_[1])); }

uint32_t ShareBalance::fastest() const {
  uint32_t found = 0;
  double most = 0;
  for (uint32_t c = 0; c < kClasses; ++c) {
    const double rate = best(c) > 0 ? share_of(weights_, c) / best(c) : 0;
    if (rate > most) {
      most = rate;
      found = c;
    }
  }
  return found;
}

Move ShareBalance::observe(const TimedShares &call) {
  if (trial_.weights != 0) {
    if (call.weights == trial_.weights && call.bytes == times_[1].bytes) {
      if (tries_ == 0 || total(call) < total(tried_)) tried_ = call;
      if (++tries_ == kTrialCalls) return judge_trial();
      return {};
    }
    if (++waits_ > kMostWaits) trial_ = {};  // calls of other sizes have come instead
  }
  if (call.weights != weights_) return {};
  ++observed_;
  times_[0] = times_[1];
  times_[1] = call;
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

Move ShareBalance::step(const Gap &gap) {
  if (slowest_ != kClasses && slowest_ != gap.slowest) gain_ = std::max(gain_ / 2, 0.25);
  if (gap.size > kFar) gain_ = 1;
  slowest_ = gap.slowest;
  double rates[kClasses] = {}, shares[kClasses] = {}, sum = 0, kept = 0;
  for (uint32_t c = 0; c < kClasses; ++c) {
    rates[c] = best(c) > 0 ? share_of(weights_, c) / best(c) : 0;
    sum += rates[c];
  }
  for (uint32_t c = 0; c < kClasses; ++c) {
    const double now = share_of(weights_, c);
    shares[c] = now + gain_ * (rates[c] / sum - now);
    // What a class takes for however little it carries does not end with smaller steps.
    if (c == gap.slowest && now < 2 * kLeast) shares[c] = 0;
    if (shares[c] < kLeast) shares[c] = 0;
    kept += shares[c];
  }
  for (double &share : shares) share /= kept;
  Move move{weights_of(shares), 0,
            format("%s took %.2f times as long as %s", class_name(gap.slowest), best(gap.slowest) / best(gap.fastest),
                   class_name(gap.fastest))};
  if (move.weights == weights_) return {};
  return move;
}

// A class alone, where classes may hinder each other; a small share for one that carries nothing.
Move ShareBalance::begin_trial() {
  if (calm_ < 2 || times_[0].bytes != times_[1].bytes) return {};
  double shares[kClasses] = {};
  Move move;
  move.calls = kTrialCalls;
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
  move.weights = weights_of(shares);
  return move;
}

Move ShareBalance::judge_trial() {
  Move tried = trial_;
  trial_ = {};
  tried.calls = 0;
  const double before = best_total(), now = total(tried_);
  if (!trial_adds_) {
    if (now > kPays * before) return {};
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
  if (now > before / kPays && active(weights_) == 1 && part / added > 1.05 * rest / others) {
    trial_adds_ = false;
    return {adds, kTrialCalls, "a trial of another class alone"};
  }
  if (added > 0.9 * others || now > before / kPays) return {};
  next_alone_ = observed_ + kSettled;
  tried.why = format("the new class took %.0f us, the others %.0f us", added / 1e3, others / 1e3);
  return tried;
}

void ShareBalance::adopt(const Move &move) {
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

void ShareBalance::keep() {
  trial_ = {};
  quiet_ = std::min<uint64_t>(2 * quiet_, kSeldom);
  quiet_until_ = observed_ + quiet_;
}

}  // namespace collc
