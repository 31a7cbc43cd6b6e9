#include "wire/rails.h"

#include <algorithm>
#include <cmath>

namespace collc {
namespace {

// After this many bytes an earlier measurement has 1/e of its weight.
constexpr double kMemoryBytes = 512 << 10;
// Messages that arrive in less time came from a buffer and are not measured, unless the rail was busy before.
constexpr int64_t kLeastUs = 500;
// A rail gets no more than it can send in this time, because another rail could send it if the rate changed.
constexpr int64_t kBacklogUs = 40000;
// Reports of arrivals may be late by these times.
constexpr int64_t kNewsUs = 2000, kOverdueUs = 20000;
// Minimum bytes of a piece; pieces begin at multiples of half of it.
constexpr uint32_t kLeastPiece = 8 << 10, kPieceStep = kLeastPiece / 2;

}  // namespace

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

void RailLoad::send(uint32_t bytes, int64_t now_us) {
  bytes_ += bytes;
  ++sent_;
  on_way_.push_back({bytes_, bytes, now_us});
}

void RailLoad::arrive(uint64_t messages, double rate, int64_t now_us) {
  if (rate > 0) told_ = rate;
  for (; arrived_ < messages && !on_way_.empty(); ++arrived_, on_way_.pop_front()) {
    const int64_t took = std::max<int64_t>(1, now_us - on_way_.front().sent_us);
    least_us_ = least_us_ == 0 ? took : std::min(least_us_, took);
    bytes_ -= on_way_.front().bytes;
  }
}

void RailLoad::reset() {
  on_way_.clear();
  sent_ = arrived_ = bytes_ = 0;
  least_us_ = 0;
}

double RailLoad::rate(int64_t now_us) const {
  if (on_way_.empty() || told_ <= 0) return told_;
  const Message &oldest = on_way_.front();
  const auto ahead = static_cast<double>(oldest.ahead), age = static_cast<double>(now_us - oldest.sent_us);
  return age > 2 * ahead / told_ + static_cast<double>(least_us_ + kOverdueUs) ? ahead / age : told_;
}

bool RailLoad::is_full(double rate) const {
  return static_cast<double>(bytes_) >= std::max(2.0 * kLeastPiece, rate * static_cast<double>(kBacklogUs + 2 * least_us_));
}

bool RailLoad::is_busy() const { return static_cast<double>(bytes_) >= std::max<double>(kLeastPiece, told_ * kNewsUs); }

std::vector<double> compare_rates(const std::vector<double> &measured, const std::vector<double> &speeds,
                                  const std::vector<bool> &open) {
  // Interfaces of unknown speed count as fast as the average of the others.
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

RailPiece choose_piece(const std::vector<RailState> &rails, uint32_t bytes, uint32_t left) {
  double sum = 0;
  for (const RailState &rail : rails) sum += rail.rate;
  RailPiece best;
  double least = 0;
  bool full = true;
  for (uint32_t i = 0; i < rails.size(); ++i) {
    if (rails[i].rate <= 0) continue;
    const double share = bytes * rails[i].rate / sum;
    uint32_t piece = std::max(kLeastPiece, static_cast<uint32_t>(std::ceil(share / kPieceStep)) * kPieceStep);
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

void OutWindow::wait(uint64_t number, uint32_t bytes) {
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

void OutWindow::lose(const RailEnd &end, uint64_t passed) {
  for (uint64_t number = read_; number < passed; ++number) {
    Slot &slot = this->slot(number);
    const bool waited = !slot.waiting.empty();
    const auto is_lost = [&end](const Piece &piece) {
      const RailTicket &ticket = piece.ticket;
      return ticket.rail == end.rail && ticket.generation == end.generation && ticket.number > end.came;
    };
    const auto lost =
        std::stable_partition(slot.pieces.begin(), slot.pieces.end(), [&](const Piece &piece) { return !is_lost(piece); });
    for (auto piece = lost; piece != slot.pieces.end(); ++piece) slot.waiting.push_back(piece->range);
    slot.pieces.erase(lost, slot.pieces.end());
    if (!waited && !slot.waiting.empty()) ++waiting_;
  }
}

bool InWindow::may_come(uint64_t number, uint64_t read) const {
  return number >= published_ && number < read + slots_.size() && !has_arrived(number);
}

bool InWindow::arrive(uint64_t number, uint64_t read, ChunkRange range, bool last) {
  if (!may_come(number, read) || range.end < range.begin) return false;
  Slot &slot = slots_[number % slots_.size()];
  const bool known = slot.bytes != UINT32_MAX;
  if (last ? known : range.end >= slot.bytes || range.begin == range.end) return false;
  for (const ChunkRange &other : slot.came)
    if ((range.begin < other.end && other.begin < range.end) || (last && other.end > range.begin)) return false;
  if (last) {
    slot.bytes = range.end;
    slot.missing -= UINT64_MAX - slot.bytes;
  }
  slot.missing -= range.end - range.begin;
  slot.came.push_back(range);
  return true;
}

bool InWindow::has_arrived(uint64_t number) const { return slots_[number % slots_.size()].missing == 0; }

void InWindow::publish(uint64_t number) {
  Slot &slot = slots_[number % slots_.size()];
  slot.came.clear();
  slot.missing = UINT64_MAX;
  slot.bytes = UINT32_MAX;
  published_ = number + 1;
}

}  // namespace collc
