#include "wire/rails.h"

#include <algorithm>
#include <cmath>

namespace collc {
namespace {

constexpr uint32_t kMostGrants = 16;  // that one message tells
constexpr unsigned kRailBits = 4;
static_assert(1U << kRailBits == kMostRails && kRailBits * kMostGrants == 64, "the rails of a message's grants");

// After so many bytes what was measured before has 1/e of its weight.
constexpr double kMemoryBytes = 512 << 10;
// What comes in less time came out of a buffer, unless the rail was busy before.
constexpr int64_t kLeastUs = 500;

}  // namespace

uint32_t choose_rail(const std::vector<double> &rates, const std::vector<uint32_t> &waiting) {
  uint32_t best = kNoRail;
  double least = 0;
  for (uint32_t i = 0; i < rates.size(); ++i) {
    if (rates[i] <= 0) continue;
    const double time = (waiting[i] + 1) / rates[i];
    if (best != kNoRail && time >= least) continue;
    best = i;
    least = time;
  }
  return best;
}

void DeliveryRate::begin(int64_t now_us, uint32_t bytes, uint32_t at_hand, bool follows, bool alone) {
  begun_us_ = now_us;
  coming_ = bytes;
  alone_ = alone;
  follows_ = follows && ended_us_ != 0;
  counted_ = follows_ ? bytes : bytes - std::min(bytes, at_hand);
}

void DeliveryRate::end(int64_t now_us) {
  if (begun_us_ == 0) return;
  const auto time = static_cast<double>(now_us - (follows_ ? ended_us_ : begun_us_));
  begun_us_ = 0;
  ended_us_ = now_us;
  if (alone_) bytes_ = time_us_ = 0;
  if (counted_ == 0 || (!follows_ && time < kLeastUs)) return;
  const double kept = std::exp(-static_cast<double>(counted_) / kMemoryBytes);
  bytes_ = bytes_ * kept + counted_;
  time_us_ = time_us_ * kept + std::max(time, 1.0);
}

double DeliveryRate::rate(int64_t now_us) const {
  const double measured = time_us_ > 0 ? bytes_ / time_us_ : 0;
  if (begun_us_ == 0 || now_us - begun_us_ < kLeastUs) return measured;
  const double most = static_cast<double>(coming_) / static_cast<double>(now_us - begun_us_);
  return measured > 0 ? std::min(measured, most) : most;
}

std::vector<double> compare_rates(const std::vector<double> &measured, const std::vector<double> &speeds,
                                  const std::vector<bool> &open) {
  // Interfaces whose speed is not known are taken for as fast as the others on average.
  double known = 0, nknown = 0;
  for (const double speed : speeds) {
    known += speed;
    nknown += speed > 0 ? 1 : 0;
  }
  const double usual = nknown > 0 ? known / nknown : 1;
  const auto nominal = [&](size_t i) { return speeds[i] > 0 ? speeds[i] : usual; };
  double found = 0, expected = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] <= 0) continue;
    found += measured[i];
    expected += nominal(i);
  }
  const double scale = found > 0 ? found / expected : 1;
  std::vector<double> rates(measured.size());
  for (size_t i = 0; i < rates.size(); ++i)
    if (open[i]) rates[i] = measured[i] > 0 ? measured[i] : nominal(i) * scale;
  return rates;
}

bool OutWindow::grant(uint64_t number, uint32_t count, uint64_t rails, uint64_t passed) {
  if (number < read_ || number > passed || count > kMostGrants || granted_ + count > number + slots_.size()) return false;
  read_ = number;
  for (; count > 0; --count, rails >>= kRailBits) {
    Slot &slot = this->slot(granted_);
    // What is known of the slot is about the chunk before, unless this one is there already.
    if (granted_++ >= passed) slot.state = State::kNone;
    slot.rail = static_cast<uint32_t>(rails & (kMostRails - 1));
  }
  return true;
}

bool OutWindow::grant_again(uint64_t number, uint32_t rail) {
  if (number >= granted_ || granted_ - number > slots_.size() || rail >= kMostRails) return false;
  if (number < read_) return true;
  Slot &slot = this->slot(number);
  slot.rail = rail;
  if (slot.state != State::kOnRail) return true;
  slot.state = State::kWaiting;
  ++waiting_;
  return true;
}

void OutWindow::wait(uint64_t number) {
  slot(number).state = State::kWaiting;
  ++waiting_;
}

void OutWindow::skip(uint64_t number) { slot(number).state = State::kBeside; }

bool OutWindow::find_waiting(uint64_t *number, uint64_t passed, uint32_t *rail) const {
  for (uint64_t n = std::max(*number, read_); n < std::min(passed, granted_); ++n) {
    if (slot(n).state != State::kWaiting) continue;
    *number = n;
    *rail = slot(n).rail;
    return true;
  }
  return false;
}

void OutWindow::sent(uint64_t number, const RailTicket &ticket) {
  Slot &slot = this->slot(number);
  slot.state = State::kOnRail;
  slot.ticket = ticket;
  --waiting_;
}

const RailTicket *OutWindow::ticket(uint64_t number) const {
  static const RailTicket none;
  const Slot &slot = this->slot(number);
  if (slot.state == State::kOnRail) return &slot.ticket;
  return slot.state == State::kWaiting ? &none : nullptr;
}

uint32_t InWindow::grant(uint64_t read, const std::vector<double> &rates, uint64_t *rails) {
  uint32_t count = 0;
  *rails = 0;
  for (; count < kMostGrants && granted_ < read + slots_.size(); ++count, ++granted_) {
    const uint32_t rail = choose_rail(rates, waiting_);
    if (rail == kNoRail) break;
    Slot &slot = slots_[granted_ % slots_.size()];
    slot.rail = rail;
    // It may have come already, beside the rails.
    if (granted_ >= published_ && slot.state != State::kArrived) ++waiting_[rail];
    *rails |= uint64_t{rail} << (kRailBits * count);
  }
  return count;
}

uint32_t InWindow::grant_again(uint64_t number, uint32_t lost, const std::vector<double> &rates) {
  Slot &slot = slots_[number % slots_.size()];
  if (number < published_ || number >= granted_ || slot.state == State::kArrived || slot.rail != lost) return kNoRail;
  // What comes beside the rails does so anyway.
  if (slot.state == State::kPlaced && slot.over != lost) return kNoRail;
  const uint32_t rail = choose_rail(rates, waiting_);
  if (rail == kNoRail) return kNoRail;
  slot.state = State::kFree;
  --waiting_[lost];
  ++waiting_[rail];
  slot.rail = rail;
  return rail;
}

bool InWindow::may_come(uint64_t number, uint64_t read, uint32_t rail) const {
  if (number < published_ || number >= read + slots_.size()) return false;
  return rail == kNoRail || (number < granted_ && slots_[number % slots_.size()].rail == rail);
}

bool InWindow::place(uint64_t number, uint64_t read, uint32_t rail) {
  Slot &slot = slots_[number % slots_.size()];
  if (!may_come(number, read, rail) || slot.state != State::kFree) return false;
  slot.state = State::kPlaced;
  slot.over = rail;
  return true;
}

bool InWindow::arrive(uint64_t number, uint64_t read, uint32_t rail) {
  Slot &slot = slots_[number % slots_.size()];
  if (!may_come(number, read, rail) || slot.state == State::kArrived) return false;
  if (slot.state == State::kPlaced && slot.over != rail) return false;
  slot.state = State::kArrived;
  if (number < granted_) --waiting_[slot.rail];
  return true;
}

void InWindow::publish(uint64_t number) {
  slots_[number % slots_.size()].state = State::kFree;
  published_ = number + 1;
}

}  // namespace collc
