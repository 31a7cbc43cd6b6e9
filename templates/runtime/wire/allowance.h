// How much of a connection may be in the kernel at a time, where nothing passes it: what leaves in three milliseconds.
//
// What the kernel has got leaves in a row. Where a server sends to several others at once, rows of all they have slots for
// fill the queue of its link, and the links of those that are not served just now run dry. On links that are fast for
// what FIFOs have slots for this limits nothing. Pure rules, without sockets or clocks of their own.
#pragma once
#include <algorithm>
#include <cstdint>

namespace collc {

class Allowance {
 public:
  static constexpr uint64_t kLeast = 24 << 10;  // more than a chunk of plans over servers
  static constexpr uint64_t kMost = 64 << 20;
  static constexpr int64_t kSpanUs = 3000;
  static constexpr int64_t kPauseSpans = 4;  // in which nobody looked: what left then tells nothing
  static constexpr int64_t kAgainUs = 200;  // between looks at one that is full

  // Whether to ask the kernel: nothing is to be gained from it while so little was handed over since.
  bool wants_look(int64_t now_us) const { return inside_ >= kLeast / 2 && now_us >= next_us_; }
  // Whether the next look measures, and needs the round trip.
  bool measures(int64_t now_us) const { return now_us - begun_us_ >= span_us_; }
  // `inside`: bytes of those that were handed over which the peer's system has not acknowledged. `round_trip_us`: the least
  // that was seen, if it measures.
  void look(int64_t now_us, uint64_t inside, int64_t round_trip_us);
  void hand_over(uint64_t bytes) {
    inside_ += bytes;
    handed_ += bytes;
  }
  // Bytes of `wanted` ones that may be handed over now: all or not in crumbs.
  uint64_t room(uint64_t wanted) const {
    const uint64_t room = inside_ < limit_ ? limit_ - inside_ : 0;
    return room >= std::min(wanted, limit_ / 4) ? room : 0;
  }
  uint64_t limit() const { return limit_; }

 private:
  uint64_t limit_ = 256 << 10;
  uint64_t handed_ = 0, inside_ = 0;  // inside: at most
  int64_t begun_us_ = 0, next_us_ = 0, span_us_ = kSpanUs;
  uint64_t acknowledged_ = 0;  // when the span began
  bool ran_dry_ = false;       // since then
};

inline void Allowance::look(int64_t now_us, uint64_t inside, int64_t round_trip_us) {
  inside_ = inside;
  ran_dry_ |= inside == 0;
  if (const int64_t span = now_us - begun_us_; measures(now_us)) {
    const uint64_t acknowledged = handed_ - std::min(handed_, inside);
    const double left =
        static_cast<double>(acknowledged - acknowledged_) * static_cast<double>(span_us_) / static_cast<double>(span);
    // It grows as long as what it allows leaves within the span, so that has room for round trips. A connection that had
    // nothing to do tells less than it can.
    if (span < kPauseSpans * span_us_) limit_ = std::clamp(static_cast<uint64_t>(left), ran_dry_ ? limit_ : kLeast, kMost);
    span_us_ = std::max(kSpanUs, 2 * round_trip_us);
    begun_us_ = now_us;
    acknowledged_ = acknowledged;
    ran_dry_ = inside == 0;
  }
  next_us_ = room(kMost) == 0 ? now_us + kAgainUs : 0;
}

}  // namespace collc
