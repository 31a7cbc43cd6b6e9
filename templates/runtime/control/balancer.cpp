#include "control/balancer.h"

#include <algorithm>

#include "base/log.h"
#include "collc/collective_traits.h"
#include "plan/weights.h"

namespace collc {
namespace {

constexpr size_t kMostPending = 64;

// Packs a proposal into one word.
uint64_t pack(uint32_t program, const WeightChange &move) {
  return uint64_t{program} << 40 | uint64_t{move.calls} << 32 | move.weights;
}
uint32_t program_of(uint64_t subject) { return static_cast<uint32_t>(subject >> 40); }
uint32_t calls_of(uint64_t subject) { return static_cast<uint32_t>(subject >> 32 & 0xff); }
uint32_t weights_of(uint64_t subject) { return static_cast<uint32_t>(subject); }

}  // namespace

std::unique_ptr<Balancer> Balancer::make(Segment &segment, const Tables &tables, const Placement &placement, uint32_t rank,
                                         const Overrides &overrides, const std::vector<uint32_t> &tuned, bool one_clock) {
  const bool fixed =
      overrides.weighting.weights != 0 || overrides.weighting.seed_plus_one != 0 || overrides.balance == Balance::kNever;
  if (fixed || placement.allocation == nullptr || !placement.machine.empty()) return nullptr;
  const Program *const first = tables.programs + placement.allocation->first_program;
  const auto is_cut = [](const Program &one) { return program_weights(one) != 0; };
  if (std::none_of(first, first + placement.allocation->nprograms, is_cut)) return nullptr;
  return std::make_unique<Balancer>(segment, tables, *placement.allocation, rank, overrides, tuned, one_clock);
}

Balancer::Balancer(Segment &segment, const Tables &tables, const Allocation &allocation, uint32_t rank,
                   const Overrides &overrides, const std::vector<uint32_t> &tuned, bool one_clock)
    : segment_(segment),
      programs_(tables.programs + allocation.first_program),
      rank_(rank),
      balance_(overrides.balance),
      one_clock_(one_clock),
      agreement_(&segment.motion(), segment.ballots(), segment.nranks(), rank),
      states_(allocation.nprograms),
      drawn_(overrides.balance_seed) {
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    states_[p].own = program_weights(programs_[p]);
    states_[p].weights = tuned.empty() || tuned[p] == 0 ? states_[p].own : tuned[p];
    if (rank == 0) policies_.emplace_back(states_[p].own, states_[p].weights);
  }
}

bool Balancer::may_start(uint64_t call) {
  if (rank_ == 0) lead();
  if (agreement_.asks()) {
    const bool decided = agrees(agreement_.subject()) ? agreement_.answer(call + 1) : agreement_.refuse();
    if (decided) ring_all();
  }
  const Agreement::Turn turn = agreement_.at(call);
  waiting_ = turn == Agreement::Turn::kWait;
  act(turn, call);
  return !waiting_;
}

void Balancer::give_up(const std::string &why) {
  if (!agreement_.refuse()) return;
  ring_all();
  if (logs(LogLevel::kInfo))
    log(LogLevel::kInfo, "%s keeps the weights of its classes: %s",
        name_of(programs_[program_of(agreement_.subject())].collective), why.c_str());
}

void Balancer::give_up_on_silent() {
  const std::vector<uint32_t> silent = agreement_.find_silent();
  if (silent.empty()) return;
  const bool one = silent.size() == 1;
  give_up(
      format("%s %s %s not come within a second", one ? "rank" : "ranks", list_ranks(silent).c_str(), one ? "has" : "have"));
}

void Balancer::act(Agreement::Turn turn, uint64_t call) {
  if (turn == Agreement::Turn::kKept && rank_ == 0) policies_[asked_for_].reject();
  if (turn != Agreement::Turn::kChange) return;
  const uint64_t subject = agreement_.subject();
  State &state = states_[program_of(subject)];
  if (rank_ == 0) {
    say(asked_, asked_for_, call);
    policies_[asked_for_].adopt(asked_);
  }
  if (calls_of(subject) != 0) {
    state.trial = weights_of(subject);
    state.trial_calls = calls_of(subject);
  } else {
    state.weights = weights_of(subject);
  }
}

uint32_t Balancer::start(const Program &program, uint64_t call, uint64_t bytes, uint32_t lost) {
  const uint32_t number = number_of(program);
  State &state = states_[number];
  times_ = state.own != 0 && bytes >= kLeastTimed;
  if (state.own == 0) return 0;
  ++state.calls;
  const uint32_t weights = remove_classes(lost, state.trial_calls != 0 ? state.trial : state.weights, state.own);
  if (lost != 0 && rank_ == 0) policies_[number].remove(lost);
  if (state.trial_calls != 0) --state.trial_calls;
  if (times_ && rank_ == 0) {
    pending_.push_back({call, bytes, number, weights});
    if (pending_.size() > kMostPending) pending_.pop_front();
  }
  return weights;
}

void Balancer::tell(uint64_t call, uint64_t begun, const uint64_t (&ended)[kClasses]) {
  TimedCall &mine = segment_.timed(rank_)[call % TimedCall::kKept];
  mine.number.store(0, std::memory_order_relaxed);
  mine.begun.store(begun, std::memory_order_release);
  for (uint32_t c = 0; c < kClasses; ++c) mine.ended[c].store(ended[c], std::memory_order_release);
  mine.number.store(call, std::memory_order_release);
}

// Returns whether this rank accepts a proposal. A reduction must have its final weights from call kWarmUp + 1 of its program
// on. The change begins with the program's next call but one at the latest, and a trial ends calls_of(subject) calls later.
bool Balancer::agrees(uint64_t subject) const {
  const State &state = states_[program_of(subject)];
  if (balance_ >= Balance::kAlways || !traits(programs_[program_of(subject)].collective).reduces) return true;
  return state.calls + 1 + calls_of(subject) <= kWarmUp;
}

// Reads the times that all ranks have published for a call. Returns false if some are missing; then sets `gone` if they will
// never come, because the rank has published a later call in their place or does not know the times.
bool Balancer::read(const Pending &pending, CallTimes *times, bool *gone) const {
  uint64_t begun = 0, ended[kClasses] = {}, shortest = ~uint64_t{0};
  for (uint32_t r = 0; r < segment_.nranks(); ++r) {
    const TimedCall &theirs = segment_.timed(r)[pending.call % TimedCall::kKept];
    const uint64_t number = theirs.number.load(std::memory_order_acquire);
    if (number != pending.call) {
      *gone |= number > pending.call;
      return false;
    }
    uint64_t own[kClasses];
    for (uint32_t c = 0; c < kClasses; ++c) own[c] = theirs.ended[c].load(std::memory_order_acquire);
    const uint64_t from = theirs.begun.load(std::memory_order_acquire), last = *std::max_element(own, own + kClasses);
    // If the clocks are separate, the rank with the least total time counts: it came last, and waited for nobody.
    const bool counts = one_clock_ || last < shortest;
    if (counts) begun = one_clock_ ? std::max(begun, from) : from;
    for (uint32_t c = 0; counts && c < kClasses; ++c) ended[c] = one_clock_ ? std::max(ended[c], own[c]) : own[c];
    shortest = std::min(shortest, last);
    if (theirs.number.load(std::memory_order_relaxed) == pending.call && theirs.begun.load(std::memory_order_relaxed) != 0)
      continue;
    *gone = true;
    return false;
  }
  times->weights = pending.weights;
  times->bytes = pending.bytes;
  // Counted from the time when the last rank had come.
  for (uint32_t c = 0; c < kClasses; ++c)
    if (ended[c] != 0) times->ns[c] = ended[c] > begun ? static_cast<double>(ended[c] - begun) : 1;
  return true;
}

// Draws a split program and random weights, either for good or for a few calls; some classes get weight 0.
WeightChange Balancer::draw(uint32_t *program) {
  const auto next = [this] {  // a linear congruential generator (Knuth's MMIX); its upper bits count
    drawn_ = drawn_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(drawn_ >> 40);
  };
  do *program = next() % static_cast<uint32_t>(states_.size());
  while (states_[*program].own == 0);
  WeightChange move{0, next() % 4, "drawn"};
  while (move.weights == 0)
    for (uint32_t c = 0; c < kClasses; ++c)
      if ((states_[*program].own >> 8 * c & 0xff) != 0 && next() % 4 != 0) move.weights |= (next() & 0xff) << 8 * c;
  return move;
}

void Balancer::lead() {
  if (balance_ == Balance::kRandom && agreement_.may_propose()) {
    asked_ = draw(&asked_for_);
    return agreement_.propose(pack(asked_for_, asked_));
  }
  if (pending_.empty() || !agreement_.may_propose()) return;
  while (!pending_.empty()) {
    const Pending first = pending_.front();
    CallTimes times;
    bool gone = false;
    const bool told = read(first, &times, &gone);
    if (!told && !gone) return;
    pending_.pop_front();
    if (!told) continue;
    asked_ = policies_[first.program].observe(times);
    if (asked_.weights == 0) continue;
    asked_for_ = first.program;
    const uint64_t subject = pack(first.program, asked_);
    if (agrees(subject)) return agreement_.propose(subject);
    policies_[first.program].reject();
  }
}

void Balancer::say(const WeightChange &move, uint32_t program, uint64_t call) const {
  if (!logs(LogLevel::kInfo)) return;
  const Program &one = programs_[program];
  const std::string lasts = move.calls != 0 ? format(" for %u calls", move.calls) : "";
  log(LogLevel::kInfo, "%s from %llu bytes on: %s from call %llu on%s, before %s: %s", name_of(one.collective),
      static_cast<unsigned long long>(one.min_bytes), show_shares(move.weights).c_str(), static_cast<unsigned long long>(call),
      lasts.c_str(), show_shares(policies_[program].weights()).c_str(), move.reason.c_str());
}

void Balancer::ring_all() {
  for (uint32_t r = 0; r < segment_.nranks(); ++r) segment_.ring(r);
}

}  // namespace collc
