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
  static constexpr uint64_t kMinLimit = 24 << 10;  // bytes; more than a chunk of plans over servers
  static constexpr uint64_t kMaxLimit = 64 << 20;
  static constexpr int64_t kSpanUs = 3000;
  // After this many spans without a look, the bytes that left say nothing about the rate.
  static constexpr int64_t kPauseSpans = 4;
  static constexpr int64_t kAgainUs = 200;  // between two looks while the kernel may get no more

  // Returns whether to ask the kernel again. While only little has been handed over since the last look, a look gains
  // nothing.
  bool wants_look(int64_t now_us) const { return in_kernel_ >= kMinLimit / 2 && now_us >= next_look_us_; }
  // Returns whether the next look measures the rate; it then needs the round trip time.
  bool measures(int64_t now_us) const { return now_us - span_start_us_ >= span_us_; }
  // `in_kernel`: bytes that were handed over and that the peer's system has not acknowledged. `round_trip_us`: the smallest
  // round trip so far, if the look measures.
  void look(int64_t now_us, uint64_t in_kernel, int64_t round_trip_us);
  void hand_over(uint64_t bytes) {
    in_kernel_ += bytes;
    handed_over_ += bytes;
  }
  // Returns how many bytes may be handed over now; `wanted` are waiting. Returns 0 instead of small amounts, below a quarter
  // of the limit, unless they are all that is wanted.
  uint64_t room(uint64_t wanted) const {
    const uint64_t room = in_kernel_ < limit_ ? limit_ - in_kernel_ : 0;
    return room >= std::min(wanted, limit_ / 4) ? room : 0;
  }
  uint64_t limit() const { return limit_; }

 private:
  uint64_t limit_ = 256 << 10;
  uint64_t handed_over_ = 0, in_kernel_ = 0;  // handed over in all; upper bound of those in the kernel
  int64_t span_start_us_ = 0, next_look_us_ = 0, span_us_ = kSpanUs;
  uint64_t acknowledged_ = 0;  // bytes acknowledged when the span began
  bool was_empty_ = false;       // since then the kernel had no bytes for a moment
};

inline void Allowance::look(int64_t now_us, uint64_t in_kernel, int64_t round_trip_us) {
  in_kernel_ = in_kernel;
  was_empty_ |= in_kernel == 0;
  if (const int64_t span = now_us - span_start_us_; measures(now_us)) {
    const uint64_t acknowledged = handed_over_ - std::min(handed_over_, in_kernel);
    const double leaving =
        static_cast<double>(acknowledged - acknowledged_) * static_cast<double>(span_us_) / static_cast<double>(span);
    // The limit grows as long as all bytes that it allows leave within the span, so the span must have room for round trips.
    // A connection that ran out of data shows less than it can carry, so it only raises the limit.
    if (span < kPauseSpans * span_us_)
      limit_ = std::clamp(static_cast<uint64_t>(leaving), was_empty_ ? limit_ : kMinLimit, kMaxLimit);
    span_us_ = std::max(kSpanUs, 2 * round_trip_us);
    span_start_us_ = now_us;
    acknowledged_ = acknowledged;
    was_empty_ = in_kernel == 0;
  }
  next_look_us_ = room(kMaxLimit) == 0 ? now_us + kAgainUs : 0;
}

}  // namespace collc
