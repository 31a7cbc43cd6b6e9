// The rules of rails by themselves, without sockets.
//   rails choose          every set of three rates and every window: what a wire delivers that obeys the rule
//   rails windows SEEDS   chunks over rails that are lost at any moment, with small ones beside them
//   rails rates           what is measured, and what is taken for the rest
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "wire/rails.h"

using namespace collc;

namespace {

void require(bool right, const std::string &what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::_Exit(1);
}

// A window of chunks over rails that each bring one chunk after the other; readers read at once, and what they have read is
// known to the sender at once. Returns the chunks per unit of time, and adds those of each rail to `brought`.
double deliver(const std::vector<double> &rates, uint32_t window, std::vector<double> *brought) {
  constexpr uint64_t kChunks = 1200;
  InWindow in(window);
  std::vector<std::deque<uint64_t>> queues(rates.size());
  std::vector<double> free_at(rates.size());
  const auto grant = [&](uint64_t read, double now) {
    const uint64_t first = in.granted();
    uint64_t rails = 0;
    for (uint32_t count = in.grant(read, rates, &rails), i = 0; i < count; ++i, rails >>= 4) {
      const uint32_t rail = rails & 15;
      if (queues[rail].empty()) free_at[rail] = now + 1 / rates[rail];
      queues[rail].push_back(first + i);
    }
    return in.granted() != first;
  };
  double now = 0;
  uint64_t passed = 0;
  while (grant(passed, now)) {
  }
  while (passed < kChunks) {
    size_t next = rates.size();
    for (size_t i = 0; i < rates.size(); ++i)
      if (!queues[i].empty() && (next == rates.size() || free_at[i] < free_at[next])) next = i;
    now = free_at[next];
    const uint64_t number = queues[next].front();
    queues[next].pop_front();
    free_at[next] = now + 1 / rates[next];
    (*brought)[next] += 1;
    require(in.arrive(number, passed, static_cast<uint32_t>(next)), "a chunk on its rail is welcome");
    for (; in.has_arrived(passed); ++passed) in.publish(passed);
    grant(passed, now);
  }
  return static_cast<double>(passed) / now;
}

int choose() {
  const double all[] = {0, 1, 2, 5, 10, 20, 25, 50, 75, 100};
  int cases = 0;
  for (const double a : all)
    for (const double b : all)
      for (const double c : all)
        for (const uint32_t window : {1U, 2U, 3U, 4U, 8U, 16U, 64U, 256U}) {
          const std::vector<double> rates = {a, b, c};
          const double most = *std::max_element(rates.begin(), rates.end()), sum = a + b + c;
          if (most == 0) {
            require(choose_rail(rates, {0, 0, 0}) == kNoRail, "no rail is open");
            continue;
          }
          ++cases;
          std::vector<double> brought(3);
          const double got = deliver(rates, window, &brought);
          const std::string what = std::to_string(a) + " " + std::to_string(b) + " " + std::to_string(c) + " window " +
                                   std::to_string(window) + ": " + std::to_string(got);
          // A rail never costs what another one would have brought alone.
          require(got > 0.9 * most, what);
          // The best that rails can do which bring a chunk while the fastest one brings the rest of the window.
          double usable = 0, chunks = 0, least = most;
          for (const double rate : rates) {
            if (rate * window < most * 2) continue;
            usable += rate;
            least = std::min(least, rate);
          }
          for (const double one : brought) chunks += one;
          if (window * least < 4 * usable) continue;
          require(got > 0.92 * usable, what + " of " + std::to_string(usable));
          if (usable < sum) continue;
          for (size_t i = 0; i < 3; ++i)
            require(std::abs(brought[i] / chunks - rates[i] / sum) < 0.05, what + ", share of rail " + std::to_string(i));
        }
  std::printf("%d cases\n", cases);
  return 0;
}

// One window of a sender and a receiver, with what is on its way between them.
class Wire {
 public:
  explicit Wire(uint32_t seed)
      : random_(seed),
        window_(1 + seed % 9),
        out_(window_),
        in_(window_),
        open_(kRails, true),
        on_(kRails),
        generation_(kRails) {}

  void run(uint64_t chunks) {
    for (uint64_t steps = 0; published_ < chunks; ++steps) {
      require(steps < 1000 * chunks, "chunks arrive");
      step(chunks);
    }
    require(out_.read() <= chunks && !out_.any_waiting(), "nothing waits at the end");
  }

 private:
  static constexpr uint32_t kRails = 3;
  struct Message {
    enum Kind { kHead, kAgain, kOpened, kSmall } kind;
    uint64_t number, rails;
    uint32_t count;
  };
  uint32_t any(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  void step(uint64_t chunks) {
    switch (any(8)) {
      case 0:
        if (written_ < chunks && written_ < out_.read() + window_) write();
        return;
      case 1:
        return send();
      case 2:
      case 3:
        return arrive(any(kRails));
      case 4:
        if (read_ < published_) ++read_;
        return tell();
      case 5:
        return hear_sender();
      case 6:
        for (uint32_t i = any(6); i > 0; --i) hear_receiver();
        return;
      default:
        if (any(20) == 0) lose(any(kRails));
        if (any(10) == 0) reopen(any(kRails));
    }
  }
  void write() {
    if (any(4) != 0) return out_.wait(written_++);
    out_.skip(written_);
    to_receiver_.push_back({Message::kSmall, written_++, 0, 0});
  }
  void send() {
    uint64_t number = 0;
    uint32_t rail = 0;
    for (; out_.find_waiting(&number, written_, &rail); ++number) {
      if (generation_[rail] != known_[rail]) continue;
      out_.sent(number, {rail, generation_[rail], 1});
      on_[rail].push_back(number);
      return;
    }
  }
  void take(uint64_t number, uint32_t rail) {
    if (any(2) == 0) require(in_.place(number, read_, rail), "a place for a chunk");
    require(in_.arrive(number, read_, rail), "a chunk is welcome");
    for (; in_.has_arrived(published_); ++published_) in_.publish(published_);
  }
  void arrive(uint32_t rail) {
    if (!open_[rail] || on_[rail].empty()) return;
    // Some have a place when their rail is lost.
    const uint64_t number = on_[rail].front();
    if (placed_ != number + 1 && any(3) == 0) {
      placed_ = number + 1;
      return;
    }
    on_[rail].pop_front();
    take(number, rail);
  }
  std::vector<double> rates() const { return {open_[0] ? 1.0 : 0, open_[1] ? 3.0 : 0, open_[2] ? 0.5 : 0}; }
  void tell() {
    uint64_t rails = 0;
    const uint32_t count = in_.grant(read_, rates(), &rails);
    to_sender_.push_back({Message::kHead, read_, rails, count});
  }
  void hear_receiver() {
    if (to_sender_.empty()) return;
    const Message message = to_sender_.front();
    to_sender_.pop_front();
    if (message.kind == Message::kHead) require(out_.grant(message.number, message.count, message.rails, written_), "a grant");
    if (message.kind == Message::kAgain) require(out_.grant_again(message.number, message.count), "a grant again");
    if (message.kind == Message::kOpened) known_[message.count] = message.number;
  }
  void hear_sender() {
    if (to_receiver_.empty()) return;
    const Message message = to_receiver_.front();
    to_receiver_.pop_front();
    take(message.number, kNoRail);
  }
  void lose(uint32_t rail) {
    if (!open_[rail] || std::count(open_.begin(), open_.end(), true) == 1) return;
    open_[rail] = false;
    on_[rail].clear();
    ++generation_[rail];
    for (uint64_t number = published_; number < in_.granted(); ++number) {
      const uint32_t other = in_.grant_again(number, rail, rates());
      if (other != kNoRail) to_sender_.push_back({Message::kAgain, number, 0, other});
    }
  }
  void reopen(uint32_t rail) {
    if (open_[rail]) return;
    open_[rail] = true;
    to_sender_.push_back({Message::kOpened, generation_[rail], 0, rail});
  }

  std::mt19937 random_;
  uint32_t window_;
  OutWindow out_;
  InWindow in_;
  std::vector<bool> open_;
  std::vector<std::deque<uint64_t>> on_;
  std::vector<uint64_t> generation_;
  std::vector<uint64_t> known_ = std::vector<uint64_t>(kRails);  // generations that the sender may use
  std::deque<Message> to_sender_, to_receiver_;
  uint64_t written_ = 0, published_ = 0, read_ = 0, placed_ = 0;
};

int windows(int seeds) {
  for (int seed = 1; seed <= seeds; ++seed) Wire(static_cast<uint32_t>(seed)).run(200);
  // What nobody may send.
  InWindow in(4);
  uint64_t rails = 0;
  require(in.grant(0, {1, 1}, &rails) == 4 && rails == 0x1010, "equal rails take turns");
  require(!in.place(4, 0, kNoRail) && !in.place(0, 0, 1) && !in.place(9, 0, 0), "no place");
  require(in.place(0, 0, 0) && !in.place(0, 0, 0) && !in.arrive(0, 0, 1) && in.arrive(0, 0, 0), "one chunk for a slot");
  require(!in.arrive(0, 0, 0), "it comes once");
  OutWindow out(4);
  require(!out.grant(1, 0, 0, 0) && !out.grant(0, 5, 0, 0) && out.grant(0, 4, 0x1010, 0), "grants of a window");
  require(!out.grant(0, 1, 0, 0) && !out.grant_again(4, 0) && !out.grant_again(0, kMostRails), "grants beyond it");
  std::printf("%d seeds\n", seeds);
  return 0;
}

void near(double found, double wanted, double part, const char *what) {
  require(std::abs(found - wanted) <= part * wanted, std::string(what) + ": " + std::to_string(found));
}

int rates() {
  constexpr uint32_t kChunk = 128 << 10;
  DeliveryRate rate;
  int64_t now = 1000;
  require(rate.rate(now) == 0, "nothing is known");
  // Bytes per microsecond.
  for (const double speed : {12.5, 3.0, 25.0, 6.0, 1.0, 12.5}) {
    for (int i = 0; i < 16; ++i) {
      rate.begin(now, kChunk, 0, i > 0, false);
      now += std::max<int64_t>(1, static_cast<int64_t>(kChunk / speed));
      rate.end(now);
    }
    near(rate.rate(now), speed, 0.25, "the rate after a change");
  }
  // Chunks that come by themselves out of a buffer tell nothing.
  rate.begin(now, kChunk, kChunk, false, false);
  rate.end(now += 5);
  near(rate.rate(now), 12.5, 0.3, "the rate after a burst");
  // One that still comes makes the rail no faster than itself.
  rate.begin(now, kChunk, 0, false, false);
  near(rate.rate(now + 1000000), kChunk / 1e6, 0.01, "the rate while a chunk comes");
  require(rate.coming_us(now + 1000000) == 1000000, "how long it comes");
  rate.stop();
  near(rate.rate(now + 1000000), 12.5, 0.3, "the rate when nothing comes any more");
  rate.begin(now, 64 << 10, 16 << 10, false, true);
  rate.end(now += 480000);
  near(rate.rate(now), 0.1024, 0.01, "a probe alone");

  const std::vector<double> half = compare_rates({12, 0, 0}, {1000, 500, 0}, {true, true, false});
  require(half == std::vector<double>({12, 6, 0}), "rates by speeds of interfaces");
  require(compare_rates({0, 0}, {0, 0}, {true, true}) == std::vector<double>({1, 1}), "nothing is known of any");
  require(compare_rates({0, 0}, {100, 0}, {true, true}) == std::vector<double>({100, 100}), "one is known");
  std::printf("rates\n");
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "choose") return choose();
  if (what == "windows" && argc == 3) return windows(std::atoi(argv[2]));
  if (what == "rates") return rates();
  return 2;
}
