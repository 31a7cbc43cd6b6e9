// How much a connection may have in the kernel, by itself: on links of any rate and length, without sockets.
//   allowance links    links stay full, and little waits in front of slow ones
//   allowance pauses   after any sequence of messages and pauses something may go again
#include "wire/allowance.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>

using collc::Allowance;

namespace {

void require(bool right, const std::string &what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::_Exit(1);
}

// A link, and a peer's system behind it that acknowledges what has arrived.
class Link {
 public:
  Link(double bytes_per_us, int64_t round_trip_us) : rate(bytes_per_us), round_trip_us_(round_trip_us) {}

  void send(double bytes) { handed_ += bytes; }
  void advance(int64_t us) {
    now_ += us;
    left_ = std::min(handed_, left_ + rate * static_cast<double>(us));
    past_.push_back({now_, left_});
    for (; !past_.empty() && past_.front().at + round_trip_us_ <= now_; past_.pop_front()) acknowledged_ = past_.front().left;
  }
  int64_t now() const { return now_; }
  double left() const { return left_; }
  double waiting() const { return handed_ - left_; }
  uint64_t inside() const { return static_cast<uint64_t>(handed_ - acknowledged_ + 0.5); }

  double rate;

 private:
  struct Moment {
    int64_t at;
    double left;
  };
  int64_t round_trip_us_, now_ = 1000000;
  double handed_ = 0, left_ = 0, acknowledged_ = 0;
  std::deque<Moment> past_;
};

// A sender that always has more, and looks every `pause_us`. Returns the share of the link that was used, and the most that
// waited in front of it.
double fill(Allowance &allowance, Link &link, int64_t round_trip_us, int64_t pause_us, int64_t us, double *waited) {
  const double before = link.left();
  const int64_t end = link.now() + us;
  for (*waited = 0; link.now() < end; link.advance(pause_us)) {
    const int64_t now = link.now();
    if (allowance.wants_look(now)) allowance.look(now, link.inside(), allowance.measures(now) ? round_trip_us : 0);
    const uint64_t bytes = std::min<uint64_t>(allowance.room(16 << 20), 16 << 20);
    allowance.hand_over(bytes);
    link.send(static_cast<double>(bytes));
    *waited = std::max(*waited, link.waiting());
  }
  return (link.left() - before) / (link.rate * static_cast<double>(us));
}

int links() {
  int cases = 0;
  for (const double mbits : {10.0, 33.0, 100.0, 1000.0, 10000.0, 100000.0})
    for (const int64_t round_trip_us : {10, 100, 1000, 5000, 50000})
      for (const int64_t pause_us : {20, 100, 500}) {
        // Where more is on its way than it ever allows, that is the limit.
        const double rate = mbits / 8, needed = rate * static_cast<double>(round_trip_us + pause_us);
        if (needed > Allowance::kMaxLimit / 2.0) continue;
        Allowance allowance;
        Link link(rate, round_trip_us);
        double waited = 0;
        fill(allowance, link, round_trip_us, pause_us, 40 * std::max<int64_t>(round_trip_us, 5000), &waited);
        const double used =
            fill(allowance, link, round_trip_us, pause_us, 10 * std::max<int64_t>(round_trip_us, 5000), &waited);
        const std::string of = std::to_string(mbits) + " Mbit/s, " + std::to_string(round_trip_us) + " us, " +
                               std::to_string(pause_us) + " us: " + std::to_string(used) + ", " + std::to_string(waited);
        require(used > 0.97, "the link is full, " + of);
        const double most = rate * (2.0 * Allowance::kSpanUs + 2.0 * static_cast<double>(round_trip_us)) + Allowance::kMinLimit;
        require(waited <= most, "little waits, " + of);
        // Another sender takes most of it.
        link.rate /= 10;
        fill(allowance, link, round_trip_us, pause_us, 20 * std::max<int64_t>(round_trip_us, 5000), &waited);
        fill(allowance, link, round_trip_us, pause_us, 5 * std::max<int64_t>(round_trip_us, 5000), &waited);
        require(waited <= most / 2 + Allowance::kMinLimit, "less waits on a slower link, " + of);
        ++cases;
      }
  std::printf("%d links\n", cases);
  return 0;
}

int pauses(unsigned seeds) {
  for (unsigned seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(seed);
    Allowance allowance;
    Link link(std::exp2(random() % 14), static_cast<int64_t>(random() % 2000));
    for (int i = 0; i < 300; ++i) {
      const uint64_t wanted = 1 + random() % (random() % 2 != 0 ? 200 : 300000);
      uint64_t left = wanted;
      for (const int64_t start = link.now(); left > 0; link.advance(100)) {
        require(link.now() - start < 60000000, "something may go, seed " + std::to_string(seed));
        if (allowance.wants_look(link.now()))
          allowance.look(link.now(), link.inside(), allowance.measures(link.now()) ? 100 : 0);
        const uint64_t bytes = std::min(allowance.room(left), left);
        allowance.hand_over(bytes);
        link.send(static_cast<double>(bytes));
        left -= bytes;
      }
      link.advance(static_cast<int64_t>(random() % 5 == 0 ? random() % 100000 : random() % 100) + 1);
    }
  }
  std::printf("%u seeds\n", seeds);
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "links") return links();
  if (what == "pauses" && argc == 3) return pauses(static_cast<unsigned>(std::atoi(argv[2])));
  return 2;
}
