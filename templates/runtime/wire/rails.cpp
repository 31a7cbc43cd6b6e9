#include "wire/rails.h"

#include <algorithm>
#include <cmath>

namespace collc {
namespace {

// After this many bytes an earlier measurement has 1/e of its weight.
constexpr double kMemoryBytes = 512 << 10;
// Messages that arrive in less time came from a buffer and are not measured, unless the rail was busy before.
constexpr int64_t kMinMeasuredUs = 500;
// A rail gets no more than it can send in this time, because another rail could send it if the rate changed.
constexpr int64_t kBacklogUs = 40000;
// Reports of arrivals may be late by these times.
constexpr int64_t kNewsUs = 2000, kOverdueUs = 20000;
// Minimum bytes of a piece; pieces begin at multiples of half of it.
constexpr uint32_t kMinPieceBytes = 8 << 10, kPieceStep = kMinPieceBytes / 2;

}  // namespace

void DeliveryRate::begin(int64_t now_us, uint32_t bytes, uint32_t at_hand, bool follows, bool resets) {
  begun_us_ = now_us;
  arriving_bytes_ = bytes;
  resets_ = resets;
  follows_ = follows && ended_us_ != 0;
  counted_bytes_ = follows_ ? bytes : bytes - std::min(bytes, at_hand);
}

void DeliveryRate::end(int64_t now_us) {
  if (begun_us_ == 0) return;
  const auto time = static_cast<double>(now_us - (follows_ ? ended_us_ : begun_us_));
  begun_us_ = 0;
  ended_us_ = now_us;
  if (resets_) bytes_ = time_us_ = 0;
  if (counted_bytes_ == 0 || (!follows_ && time < kMinMeasuredUs)) return;
  const double decay = std::exp(-static_cast<double>(counted_bytes_) / kMemoryBytes);
  bytes_ = bytes_ * decay + counted_bytes_;
  time_us_ = time_us_ * decay + std::max(time, 1.0);
}

double DeliveryRate::rate(int64_t now_us) const {
  const double measured = time_us_ > 0 ? bytes_ / time_us_ : 0;
  if (begun_us_ == 0 || now_us - begun_us_ < kMinMeasuredUs) return measured;
  const double max_rate = static_cast<double>(arriving_bytes_) / static_cast<double>(now_us - begun_us_);
  return measured > 0 ? std::min(measured, max_rate) : max_rate;
}

void RailLoad::send(uint32_t bytes, int64_t now_us) {
  bytes_ += bytes;
  ++sent_;
  on_way_.push_back({bytes_, bytes, now_us});
}

void RailLoad::record_arrivals(uint64_t messages, double rate, int64_t now_us) {
  if (rate > 0) reported_rate_ = rate;
  for (; arrived_ < messages && !on_way_.empty(); ++arrived_, on_way_.pop_front()) {
    const int64_t latency_us = std::max<int64_t>(1, now_us - on_way_.front().sent_us);
    min_latency_us_ = min_latency_us_ == 0 ? latency_us : std::min(min_latency_us_, latency_us);
    bytes_ -= on_way_.front().bytes;
  }
}

void RailLoad::reset() {
  on_way_.clear();
  sent_ = arrived_ = bytes_ = 0;
  min_latency_us_ = 0;
}

double RailLoad::rate(int64_t now_us) const {
  if (on_way_.empty() || reported_rate_ <= 0) return reported_rate_;
  const Message &oldest = on_way_.front();
  const auto ahead = static_cast<double>(oldest.ahead), age = static_cast<double>(now_us - oldest.sent_us);
  return age > 2 * ahead / reported_rate_ + static_cast<double>(min_latency_us_ + kOverdueUs) ? ahead / age : reported_rate_;
}

bool RailLoad::is_full(double rate) const {
  return static_cast<double>(bytes_) >=
         std::max(2.0 * kMinPieceBytes, rate * static_cast<double>(kBacklogUs + 2 * min_latency_us_));
}

bool RailLoad::is_busy() const {
  return static_cast<double>(bytes_) >= std::max<double>(kMinPieceBytes, reported_rate_ * kNewsUs);
}

std::vector<double> compare_rates(const std::vector<double> &measured, const std::vector<double> &speeds,
                                  const std::vector<bool> &open) {
  // Interfaces of unknown speed count as fast as the average of the others.
  double speed_sum = 0, nspeeds = 0;
  for (const double speed : speeds) {
    speed_sum += speed;
    nspeeds += speed > 0 ? 1 : 0;
  }
  const double mean_speed = nspeeds > 0 ? speed_sum / nspeeds : 1;
  const auto nominal = [&](size_t i) { return speeds[i] > 0 ? speeds[i] : mean_speed; };
  double measured_sum = 0, expected = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] <= 0) continue;
    measured_sum += measured[i];
    expected += nominal(i);
  }
  const double scale = measured_sum > 0 ? measured_sum / expected : 1;
  std::vector<double> rates(measured.size());
  for (size_t i = 0; i < rates.size(); ++i)
    if (open[i]) rates[i] = measured[i] > 0 ? measured[i] : nominal(i) * scale;
  return rates;
}

RailPiece choose_piece(const std::vector<RailState> &rails, uint32_t bytes, uint32_t left) {
  double sum = 0;
  for (const RailState &rail : rails) sum += rail.rate;
  RailPiece best;
  double least = 0;
  bool full = true;
  for (uint32_t i = 0; i < rails.size(); ++i) {
    if (rails[i].rate <= 0) continue;
    const double share = bytes * rails[i].rate / sum;
    uint32_t piece = std::max(kMinPieceBytes, static_cast<uint32_t>(std::ceil(share / kPieceStep)) * kPieceStep);
    if (piece > left || left - piece < kPieceStep) piece = left;
    const double time = (static_cast<double>(rails[i].on_way) + piece) / rails[i].rate;
    // Of two equal rails prefers one that is not full, because a full one may be broken.
    if (best.rail != kNoRail && (time > least || (time == least && !full))) continue;
    best = {i, piece};
    least = time;
    full = rails[i].full;
  }
  return full ? RailPiece{} : best;
}

bool OutWindow::read(uint64_t number, uint64_t passed) {
  if (number < read_ || number > passed) return false;
  for (; read_ < number; ++read_) {
    Slot &slot = this->slot(read_);
    if (!slot.waiting.empty()) return false;  // not all of it was sent
    slot.pieces.clear();
  }
  return true;
}

void OutWindow::add_waiting(uint64_t number, uint32_t bytes) {
  Slot &slot = this->slot(number);
  slot.pieces.clear();
  slot.waiting = {{0, bytes}};
  ++waiting_;
}

bool OutWindow::find_waiting(uint64_t passed, uint64_t *number, ChunkRange *range) const {
  for (uint64_t n = read_; waiting_ > 0 && n < passed; ++n) {
    if (slot(n).waiting.empty()) continue;
    *number = n;
    *range = slot(n).waiting.front();
    return true;
  }
  return false;
}

void OutWindow::sent(uint64_t number, uint32_t bytes, const RailTicket &ticket) {
  Slot &slot = this->slot(number);
  ChunkRange &range = slot.waiting.front();
  slot.pieces.push_back({{range.begin, range.begin + bytes}, ticket});
  range.begin += bytes;
  if (range.begin < range.end) return;
  slot.waiting.erase(slot.waiting.begin());
  if (slot.waiting.empty()) --waiting_;
}

void OutWindow::requeue(const RailEnd &end, uint64_t passed) {
  for (uint64_t number = read_; number < passed; ++number) {
    Slot &slot = this->slot(number);
    const bool waited = !slot.waiting.empty();
    const auto is_lost = [&end](const Piece &piece) {
      const RailTicket &ticket = piece.ticket;
      return ticket.rail == end.rail && ticket.generation == end.generation && ticket.number > end.arrived;
    };
    const auto first_lost =
        std::stable_partition(slot.pieces.begin(), slot.pieces.end(), [&](const Piece &piece) { return !is_lost(piece); });
    for (auto piece = first_lost; piece != slot.pieces.end(); ++piece) slot.waiting.push_back(piece->range);
    slot.pieces.erase(first_lost, slot.pieces.end());
    if (!waited && !slot.waiting.empty()) ++waiting_;
  }
}

bool InWindow::may_come(uint64_t number, uint64_t read) const {
  return number >= published_ && number < read + slots_.size() && !has_arrived(number);
}

bool InWindow::record_piece(uint64_t number, uint64_t read, ChunkRange range, bool last) {
  if (!may_come(number, read) || range.end < range.begin) return false;
  Slot &slot = slots_[number % slots_.size()];
  const bool has_size = slot.bytes != UINT32_MAX;
  if (last ? has_size : range.end >= slot.bytes || range.begin == range.end) return false;
  for (const ChunkRange &other : slot.arrived)
    if ((range.begin < other.end && other.begin < range.end) || (last && other.end > range.begin)) return false;
  if (last) {
    slot.bytes = range.end;
    slot.missing -= UINT64_MAX - slot.bytes;
  }
  slot.missing -= range.end - range.begin;
  slot.arrived.push_back(range);
  return true;
}

bool InWindow::has_arrived(uint64_t number) const { return slots_[number % slots_.size()].missing == 0; }

void InWindow::publish(uint64_t number) {
  Slot &slot = slots_[number % slots_.size()];
  slot.arrived.clear();
  slot.missing = UINT64_MAX;
  slot.bytes = UINT32_MAX;
  published_ = number + 1;
}

}  // namespace collc
