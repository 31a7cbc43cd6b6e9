// Limits how many bytes of a connection are in the kernel at a time: as many as leave within 3 ms.
//
// Bytes in the kernel leave in the order of their arrival there, and nothing passes them. If a server sends to several others
// at once, the bytes of one connection, as many as FIFOs have slots for, would fill the queue of the server's link, while the
// links of the other servers run dry. On links that are fast in relation to the FIFOs' slots this limits nothing. Pure rules
// without sockets or clocks.
#pragma once
#include <algorithm>
#include <cstdint>

namespace collc {

class Allowance {
 public:
  static constexpr uint64_t kLeast = 24 << 10;  // bytes; more than a chunk of plans over servers
  static constexpr uint64_t kMost = 64 << 20;
  static constexpr int64_t kSpanUs = 3000;
  // After this many spans without a look, the bytes that left say nothing about the rate.
  static constexpr int64_t kPauseSpans = 4;
  static constexpr int64_t kAgainUs = 200;  // between two looks while the kernel may get no more

  // Returns whether to ask the kernel again. While only little has been handed over since the last look, a look gains
  // nothing.
  bool wants_look(int64_t now_us) const { return inside_ >= kLeast / 2 && now_us >= next_us_; }
  // Returns whether the next look measures the rate; it then needs the round trip time.
  bool measures(int64_t now_us) const { return now_us - begun_us_ >= span_us_; }
  // `inside`: bytes that were handed over and that the peer's system has not acknowledged. `round_trip_us`: the smallest
  // round trip so far, if the look measures.
  void look(int64_t now_us, uint64_t inside, int64_t round_trip_us);
  void hand_over(uint64_t bytes) {
    inside_ += bytes;
    handed_ += bytes;
  }
  // Returns how many bytes may be handed over now; `wanted` are waiting. Returns 0 instead of small amounts, below a quarter
  // of the limit, unless they are all that is wanted.
  uint64_t room(uint64_t wanted) const {
    const uint64_t room = inside_ < limit_ ? limit_ - inside_ : 0;
    return room >= std::min(wanted, limit_ / 4) ? room : 0;
  }
  uint64_t limit() const { return limit_; }

 private:
  uint64_t limit_ = 256 << 10;
  uint64_t handed_ = 0, inside_ = 0;  // handed over in all; upper bound of those in the kernel
  int64_t begun_us_ = 0, next_us_ = 0, span_us_ = kSpanUs;
  uint64_t acknowledged_ = 0;  // bytes acknowledged when the span began
  bool ran_dry_ = false;       // since then the kernel had no bytes for a moment
};

inline void Allowance::look(int64_t now_us, uint64_t inside, int64_t round_trip_us) {
  inside_ = inside;
  ran_dry_ |= inside == 0;
  if (const int64_t span = now_us - begun_us_; measures(now_us)) {
    const uint64_t acknowledged = handed_ - std::min(handed_, inside);
    const double left =
        static_cast<double>(acknowledged - acknowledged_) * static_cast<double>(span_us_) / static_cast<double>(span);
    // The limit grows as long as all bytes that it allows leave within the span, so the span must have room for round trips.
    // A connection that ran out of data shows less than it can carry, so it only raises the limit.
    if (span < kPauseSpans * span_us_) limit_ = std::clamp(static_cast<uint64_t>(left), ran_dry_ ? limit_ : kLeast, kMost);
    span_us_ = std::max(kSpanUs, 2 * round_trip_us);
    begun_us_ = now_us;
    acknowledged_ = acknowledged;
    ran_dry_ = inside == 0;
  }
  next_us_ = room(kMost) == 0 ? now_us + kAgainUs : 0;
}

}  // namespace collc
