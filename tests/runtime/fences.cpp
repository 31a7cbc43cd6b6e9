// Two threads each store a word and then load the other's word, many times. With Segment's asymmetric fences for a frequent
// and a rare side, at least one of them must see the other's store. Prints how often neither did. The argument "unsettled"
// leaves out the fence of the rare side.
#include <cstdio>
#include <cstring>
#include <thread>

#include "control/segment.h"

using namespace collc;

namespace {

constexpr uint64_t kRounds = 100000;

struct alignas(128) Word {
  std::atomic<uint64_t> value{0};
};

Word frequent, rare, done[2];
uint64_t seen_by_frequent, seen_by_rare;

// Both begin a round at the same time, as well as that goes.
void meet(int me, uint64_t step) {
  done[me].value.store(step, std::memory_order_release);
  for (uint64_t spins = 0; done[1 - me].value.load(std::memory_order_acquire) < step; ++spins)
    if (spins > 1000) std::this_thread::yield();
}

}  // namespace

int main(int argc, char **argv) {
  const bool settles = argc < 2 || std::strcmp(argv[1], "unsettled") != 0;
  std::shared_ptr<Segment> segment;
  if (!Segment::create({2, 64, kPage}, &segment).ok()) return 1;
  if (!segment->attach(0).ok() || !segment->attach(1).ok()) return 1;
  uint64_t missed = 0;
  std::thread other([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      meet(1, 2 * round - 1);
      segment->show(frequent.value, round);
      seen_by_frequent = rare.value.load(std::memory_order_seq_cst);
      meet(1, 2 * round);
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    meet(0, 2 * round - 1);
    if (settles) {
      rare.value.store(round, std::memory_order_seq_cst);
      segment->settle();
    } else {
      rare.value.store(round, std::memory_order_release);
    }
    seen_by_rare = frequent.value.load(std::memory_order_seq_cst);
    meet(0, 2 * round);
    missed += seen_by_frequent < round && seen_by_rare < round;
  }
  other.join();
  std::printf("%llu\n", static_cast<unsigned long long>(missed));
  return 0;
}
