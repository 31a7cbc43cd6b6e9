// The rules of rails by themselves, without sockets.
//   rails choose          sets of three rates, FIFOs and windows: the delivered rate if the sender obeys the rule
//   rails changes         rates that change between calls
//   rails windows SEEDS   chunks over rails that are lost at any moment, with small ones beside them
//   rails rates           measured rates, and the rates that replace missing ones
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

// Rails with a sender that obeys the rule and a receiver that measures: bytes flow at each rail's rate, in order; readers read at
// once; news takes `kNewsUs`. Chunks of several FIFOs with a window each.
class Flow {
 public:
  Flow(std::vector<double> rates, uint32_t fifos, uint32_t window, uint32_t chunk)
      : rates_(std::move(rates)), window_(window), chunk_(chunk), fifos_(fifos, Fifo(window)), rails_(rates_.size()) {
    // The results of the first probes.
    for (size_t i = 0; i < rates_.size(); ++i) told(i, rates_[i]);
  }
  void change(std::vector<double> rates) { rates_ = std::move(rates); }

  // Delivers `bytes` more bytes and returns the rate in bytes per microsecond.
  double run(uint64_t bytes) {
    const uint64_t chunks = bytes / chunk_ / fifos_.size(), began = now_;
    for (Fifo &fifo : fifos_) fifo.last = fifo.passed + chunks;
    for (Rail &rail : rails_) rail.brought = 0;
    while (std::any_of(fifos_.begin(), fifos_.end(), [](const Fifo &fifo) { return fifo.known < fifo.last; })) step();
    return static_cast<double>(chunks * chunk_ * fifos_.size()) / static_cast<double>(now_ - began);
  }
  double share(size_t rail) const {
    double all = 0;
    for (const Rail &one : rails_) all += one.brought;
    return rails_[rail].brought / all;
  }

 private:
  static constexpr int64_t kNewsUs = 300;
  struct Fifo {
    explicit Fifo(uint32_t window) : out(window), in(window) {}
    OutWindow out;
    InWindow in;
    uint64_t last = 0, passed = 0, shown = 0, known = 0;  // to be written; written; there; known here to be read
  };
  struct Message {
    uint32_t fifo;
    uint64_t number;
    ChunkRange range;
    bool follows;
  };
  struct Rail {
    std::deque<Message> queue;
    double left = 0, brought = 0;
    bool begun = false;
    uint64_t came = 0;
    DeliveryRate rate;
    RailLoad load;
  };
  struct News {
    int64_t at;
    size_t rail;
    uint64_t came, shown;
    double rate;
    uint32_t fifo;
  };

  void told(size_t i, double rate) {
    rails_[i].load.send(1, now_);
    rails_[i].load.record_arrivals(1, rate, now_ + kNewsUs);
    rails_[i].came = 1;
  }
  void send() {
    for (uint32_t f = 0, without = 0; without < fifos_.size(); f = (f + 1) % static_cast<uint32_t>(fifos_.size())) {
      Fifo &fifo = fifos_[f];
      while (fifo.passed < fifo.last && fifo.passed < fifo.known + window_) fifo.out.add_waiting(fifo.passed++, chunk_);
      uint64_t number = 0;
      ChunkRange range;
      if (!fifo.out.find_waiting(fifo.passed, &number, &range)) {
        ++without;
        continue;
      }
      without = 0;
      std::vector<double> measured;
      for (const Rail &rail : rails_) measured.push_back(rail.load.rate(now_));
      std::vector<bool> open;
      for (const double rate : rates_) open.push_back(rate > 0);
      const std::vector<double> rates = compare_rates(measured, std::vector<double>(rates_.size()), open);
      std::vector<RailState> states;
      for (size_t i = 0; i < rails_.size(); ++i)
        states.push_back({rates[i], rails_[i].load.bytes(), rails_[i].load.is_full(rates[i])});
      const RailPiece piece = choose_piece(states, chunk_, range.end - range.begin);
      if (piece.rail == kNoRail) return;
      require(piece.bytes > 0 && piece.bytes <= range.end - range.begin, "a piece of what waits");
      Rail &rail = rails_[piece.rail];
      rail.queue.push_back({f, number, {range.begin, range.begin + piece.bytes}, rail.load.is_busy()});
      rail.load.send(piece.bytes, now_);
      fifo.out.sent(number, piece.bytes, {piece.rail, 1, rail.load.sent()});
    }
  }
  void step() {
    send();
    int64_t next = INT64_MAX;
    if (!news_.empty()) next = news_.front().at;
    for (size_t i = 0; i < rails_.size(); ++i) {
      Rail &rail = rails_[i];
      if (rail.queue.empty()) continue;
      const Message &message = rail.queue.front();
      if (!rail.begun) {
        rail.begun = true;
        rail.left = message.range.end - message.range.begin;
        rail.rate.begin(now_, message.range.end - message.range.begin, 0, message.follows, false);
      }
      next = std::min(next, now_ + std::max<int64_t>(1, static_cast<int64_t>(std::ceil(rail.left / rates_[i]))));
    }
    require(next != INT64_MAX, "something is on its way");
    const auto time = static_cast<double>(next - now_);
    now_ = next;
    for (size_t i = 0; i < rails_.size(); ++i) {
      Rail &rail = rails_[i];
      if (rail.queue.empty() || (rail.left -= rates_[i] * time) > 0) continue;
      const Message message = rail.queue.front();
      rail.queue.pop_front();
      rail.begun = false;
      rail.rate.end(now_);
      rail.brought += message.range.end - message.range.begin;
      Fifo &fifo = fifos_[message.fifo];
      require(fifo.in.record_piece(message.number, fifo.shown, message.range, message.range.end == chunk_),
              "a piece is welcome");
      for (; fifo.in.has_arrived(fifo.shown); ++fifo.shown) fifo.in.publish(fifo.shown);
      news_.push_back({now_ + kNewsUs, i, ++rail.came, fifo.shown, rail.rate.rate(now_), message.fifo});
    }
    for (; !news_.empty() && news_.front().at <= now_; news_.pop_front()) {
      const News &one = news_.front();
      rails_[one.rail].load.record_arrivals(one.came, one.rate, now_);
      Fifo &fifo = fifos_[one.fifo];
      fifo.known = std::max(fifo.known, one.shown);
      require(fifo.out.read(fifo.known, fifo.passed), "it was read");
    }
  }

  std::vector<double> rates_;
  uint32_t window_, chunk_;
  std::vector<Fifo> fifos_;
  std::vector<Rail> rails_;
  std::deque<News> news_;
  int64_t now_ = 1000;
};

// In bytes per microsecond, for rates in Mbit/s.
std::vector<double> flows(std::vector<double> rates) {
  for (double &rate : rates) rate /= 8;
  return rates;
}

int choose() {
  const double all[] = {0, 1, 2, 5, 10, 20, 25, 50, 75, 100};
  int cases = 0;
  for (const double a : all)
    for (const double b : all)
      for (const double c : all)
        for (const uint32_t fifos : {1U, 4U})
          for (const uint32_t window : {2U, 4U, 8U}) {
            const std::vector<double> rates = {a, b, c};
            const double most = *std::max_element(rates.begin(), rates.end()), sum = a + b + c;
            if (most == 0) {
              require(choose_piece({{}, {}, {}}, 1 << 17, 1 << 17).rail == kNoRail, "no rail is open");
              continue;
            }
            ++cases;
            Flow flow(flows(rates), fifos, window, 128 << 10);
            const double got = flow.run(16 << 20) * 8;
            const std::string what = std::to_string(a) + " " + std::to_string(b) + " " + std::to_string(c) + ", " +
                                     std::to_string(fifos) + " FIFOs, window " + std::to_string(window) + ": " +
                                     std::to_string(got);
            // All rails together deliver at least as much as the best single rail.
            require(got > 0.99 * most, what);
            require(got > 0.9 * sum, what + " of " + std::to_string(sum));
            // Rails of less than a tenth may bring little.
            const double least = *std::min_element(
                rates.begin(), rates.end(), [](double one, double other) { return one != 0 && (other == 0 || one < other); });
            const double part = least < most / 10 || window < 4 ? 0.1 : 0.04;
            for (size_t i = 0; i < 3; ++i)
              require(std::abs(flow.share(i) - rates[i] / sum) < part, what + ", share of rail " + std::to_string(i));
          }
  std::printf("%d cases\n", cases);
  return 0;
}

// Calls of 16 MiB, two after each change of rates.
int changes() {
  int cases = 0;
  for (const double low : {5.0, 10.0, 25.0, 50.0})
    for (const uint32_t fifos : {1U, 2U, 4U, 8U}) {
      Flow flow(flows({100, 100}), fifos, 4, 128 << 10);
      flow.run(16 << 20);
      for (int change = 0; change < 6; ++change, ++cases) {
        const double rate = change % 2 == 0 ? low : 100;
        flow.change(flows({100, rate}));
        const double first = flow.run(16 << 20) * 8 / (100 + rate), second = flow.run(16 << 20) * 8 / (100 + rate);
        const std::string what = "100 + " + std::to_string(rate) + ", " + std::to_string(fifos) +
                                 " FIFOs: " + std::to_string(first) + " " + std::to_string(second);
        require(first > 0.75 && second > 0.98, what);
      }
    }
  std::printf("%d changes\n", cases);
  return 0;
}

// One window of a sender and a receiver, with the chunks in flight between them. Bytes are units here.
class Wire {
 public:
  explicit Wire(uint32_t seed) : random_(seed), window_(1 + seed % 9), out_(window_), in_(window_), rails_(kRails) {}

  void run(uint64_t chunks) {
    for (uint64_t steps = 0; published_ < chunks; ++steps) {
      require(steps < 2000 * chunks, "chunks arrive");
      step(chunks);
    }
    require(out_.read() <= chunks && !out_.any_waiting(), "nothing waits at the end");
  }

 private:
  static constexpr uint32_t kRails = 3;
  static constexpr uint32_t kUnits = 8;
  struct Piece {
    uint64_t number;
    ChunkRange range;
  };
  struct Rail {
    bool open = true;
    uint64_t generation = 1, known = 1;  // of the connection; the generation that the sender may use
    uint64_t sent = 0, came = 0;
    std::deque<Piece> on;
  };
  struct Message {
    enum Kind { kHead, kEnd, kOpened, kSmall } kind;
    uint64_t number;
    RailEnd end;
  };
  uint32_t any(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  // The size of a chunk depends on its number.
  static uint32_t bytes_of(uint64_t number) { return 1 + static_cast<uint32_t>(number * 7 % kUnits); }

  void step(uint64_t chunks) {
    switch (any(8)) {
      case 0:
        if (written_ < chunks && written_ < out_.read() + window_) write();
        return;
      case 1:
        return send();
      case 2:
      case 3:
        return arrive(rails_[any(kRails)]);
      case 4:
        if (read_ < published_) ++read_;
        to_sender_.push_back({Message::kHead, read_, {}});
        return;
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
    if (any(4) != 0) {
      out_.add_waiting(written_, bytes_of(written_));
      ++written_;
      return;
    }
    out_.skip(written_);
    to_receiver_.push_back(written_++);
  }
  void send() {
    uint64_t number = 0;
    ChunkRange range;
    if (!out_.find_waiting(written_, &number, &range)) return;
    const uint32_t k = any(kRails);
    Rail &rail = rails_[k];
    if (rail.generation != rail.known) return;
    const uint32_t bytes = 1 + any(range.end - range.begin);
    out_.sent(number, bytes, {k, rail.generation, ++rail.sent});
    rail.on.push_back({number, {range.begin, range.begin + bytes}});
  }
  void take(uint64_t number, ChunkRange range) {
    require(in_.may_come(number, read_), "a place for a piece");
    require(in_.record_piece(number, read_, range, range.end == bytes_of(number)), "a piece is welcome");
    require(!in_.record_piece(number, read_, range, range.end == bytes_of(number)), "it comes once");
    for (; in_.has_arrived(published_); ++published_) in_.publish(published_);
  }
  void arrive(Rail &rail) {
    if (!rail.open || rail.on.empty()) return;
    const Piece piece = rail.on.front();
    rail.on.pop_front();
    ++rail.came;
    take(piece.number, piece.range);
  }
  void hear_receiver() {
    if (to_sender_.empty()) return;
    const Message message = to_sender_.front();
    to_sender_.pop_front();
    if (message.kind == Message::kHead) require(out_.read(message.number, written_), "what was read");
    if (message.kind == Message::kEnd) {
      out_.requeue(message.end, written_);
      rails_[message.end.rail].known = 0;
    }
    if (message.kind == Message::kOpened) rails_[message.end.rail].known = message.end.generation;
  }
  void hear_sender() {
    if (to_receiver_.empty()) return;
    const uint64_t number = to_receiver_.front();
    to_receiver_.pop_front();
    take(number, {0, bytes_of(number)});
  }
  void lose(uint32_t k) {
    Rail &rail = rails_[k];
    if (!rail.open) return;
    rail.open = false;
    rail.on.clear();
    to_sender_.push_back({Message::kEnd, 0, {k, rail.generation, rail.came}});
  }
  // The sender knows at once that its connection is another one, and may use it when it has heard so.
  void reopen(uint32_t k) {
    Rail &rail = rails_[k];
    if (rail.open) return;
    rail.open = true;
    ++rail.generation;
    rail.sent = rail.came = 0;
    rail.on.clear();
    to_sender_.push_back({Message::kOpened, 0, {k, rail.generation, 0}});
  }

  std::mt19937 random_;
  uint32_t window_;
  OutWindow out_;
  InWindow in_;
  std::vector<Rail> rails_;
  std::deque<Message> to_sender_;
  std::deque<uint64_t> to_receiver_;
  uint64_t written_ = 0, published_ = 0, read_ = 0;
};

int windows(int seeds) {
  for (int seed = 1; seed <= seeds; ++seed) Wire(static_cast<uint32_t>(seed)).run(200);
  // Chunks that no sender may send.
  InWindow in(4);
  require(!in.may_come(4, 0) && in.may_come(3, 0) && in.may_come(4, 1), "chunks of the window");
  require(in.record_piece(1, 0, {2, 4}, false) && !in.record_piece(1, 0, {3, 5}, false), "bytes come once");
  require(!in.record_piece(1, 0, {2, 3}, true) && !in.record_piece(1, 0, {0, 3}, true), "none come behind the last ones");
  require(in.record_piece(1, 0, {4, 6}, true) && !in.record_piece(1, 0, {6, 7}, true), "a chunk ends once");
  require(
      !in.record_piece(1, 0, {5, 7}, false) && !in.record_piece(1, 0, {7, 8}, false) && !in.record_piece(1, 0, {1, 1}, false),
      "no bytes");
  require(!in.has_arrived(1) && in.record_piece(1, 0, {0, 2}, false) && in.has_arrived(1) && !in.may_come(1, 0),
          "all have come");
  require(in.record_piece(0, 0, {0, 0}, true) && in.has_arrived(0), "a chunk without bytes");
  OutWindow out(4);
  require(!out.read(1, 0), "nothing was written");
  out.add_waiting(0, 8);
  require(!out.read(1, 1), "it has not gone");
  out.sent(0, 8, {0, 1, 1});
  require(out.read(1, 1) && !out.read(0, 1), "it was read");
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
  if (what == "changes") return changes();
  if (what == "windows" && argc == 3) return windows(std::atoi(argv[2]));
  if (what == "rates") return rates();
  return 2;
}
