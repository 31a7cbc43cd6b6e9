// control/losses.h by threads: ranks begin calls while others lose classes, and all ranks must leave a class out of the same calls.
//
//   losses NRANKS ROUNDS           prints: calls, of them those that began without a class
//   losses NRANKS ROUNDS careless  the ranks look whether a class is lost before they show which call they begin: found, 1
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "control/losses.h"

namespace {

using collc::BegunCall;
using collc::kClasses;
using collc::Losses;
using collc::LossWords;

constexpr uint64_t kCalls = 40;
constexpr uint32_t kNobody = ~uint32_t{0};

struct Round {
  LossWords words = {};
  std::vector<BegunCall> begun;
  std::vector<std::atomic<uint32_t>> lost;  // of each call, as the first rank saw it
  std::atomic<uint32_t> ready{0};
  std::atomic<bool> differs{false};
};

void rank_of(Round &round, uint32_t nranks, uint32_t rank, uint32_t seed, bool careless) {
  Losses losses(&round.words, round.begun.data(), nranks, rank);
  const auto draw = [&seed] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
  round.ready.fetch_add(1);
  while (round.ready.load() != nranks) std::this_thread::yield();
  const uint64_t mine = 1 + draw() % kCalls;
  for (uint64_t call = 1; call <= kCalls; ++call) {
    if (call == mine) losses.lose(rank % kClasses);
    uint32_t lost = 0;
    if (careless) {
      for (uint32_t c = 0; c < kClasses; ++c) {
        const uint64_t from = round.words.from[c].load();
        if (from != 0 && call >= from) lost |= 1u << c;
      }
      if (draw() % 8 == 0) std::this_thread::yield();
      losses.begin(call);
    } else {
      lost = losses.begin(call);
    }
    uint32_t nobody = kNobody;
    if (!round.lost[call].compare_exchange_strong(nobody, lost) && nobody != lost) round.differs = true;
    if (draw() % 16 == 0) std::this_thread::yield();
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const auto nranks = static_cast<uint32_t>(std::atoi(argv[1]));
  const int rounds = std::atoi(argv[2]);
  const bool careless = argc > 3;
  uint64_t without = 0, made = 0;
  for (int n = 0; n < rounds; ++n) {
    Round round;
    round.begun = std::vector<BegunCall>(nranks);
    round.lost = std::vector<std::atomic<uint32_t>>(kCalls + 1);
    for (auto &one : round.lost) one = kNobody;
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < nranks; ++r)
      threads.emplace_back(
          [&round, nranks, r, n, careless] { rank_of(round, nranks, r, static_cast<uint32_t>(n) * 131 + r, careless); });
    for (std::thread &one : threads) one.join();
    if (round.differs && careless) {
      std::printf("1\n");
      return 0;
    }
    if (round.differs) {
      std::fprintf(stderr, "round %d: ranks differ\n", n);
      return 1;
    }
    for (uint64_t call = 1; call <= kCalls; ++call) without += round.lost[call] != 0 ? 1 : 0;
    made += kCalls;
  }
  if (careless) return 1;
  std::printf("%llu %llu\n", static_cast<unsigned long long>(made), static_cast<unsigned long long>(without));
  return 0;
}
