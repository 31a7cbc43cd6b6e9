// Runs the choice of a root (transport/pull_ways.h) on given costs: `pull_ways FIRST SEED PHASE...`. A phase is
// CALLS:BYTES:SLOTS,KERNEL: CALLS broadcasts of BYTES, and the ticks per KiB through slots and by the kernel (0: the reader notes
// nothing). The first calls after a change cost 1.5 times as much, one call in fifty costs 10 times as much, and a root that does
// not wait is one call ahead of its reader's notes. Prints for each phase the cost of its calls, the costs if all calls had used
// slots or the kernel, and the number of calls that the kernel copied.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "transport/pull_ways.h"

using namespace collc;

int main(int argc, char **argv) {
  const uint64_t slots = 2 << 20;
  const auto first = static_cast<uint32_t>(std::atoi(argv[1]));
  std::mt19937_64 random(static_cast<uint64_t>(std::atoi(argv[2])));
  PullWays ways;
  PullCosts noted{};
  WayRun truth[PullCosts::kSizes];
  PullReader reader;
  for (int p = 3; p < argc; ++p) {
    uint64_t calls, bytes, cost[2];
    if (std::sscanf(argv[p], "%" SCNu64 ":%" SCNu64 ":%" SCNu64 ",%" SCNu64, &calls, &bytes, &cost[0], &cost[1]) != 4) return 1;
    uint64_t spent = 0, pulled = 0;
    for (uint64_t call = 0; call < calls; ++call) {
      const uint32_t way = ways.next(first, bytes, slots, [&](uint32_t of) { return noted.at(of, bytes); });
      const uint64_t ticks =
          cost[way] * (truth[PullCosts::size(bytes)].settled(way, PullWays::behind(bytes, slots)) ? 2 : 3) / 2;
      spent += ticks;
      pulled += way;
      const uint64_t odd = random() % 50 == 0 ? 10 : 1;
      reader.begin(call, way);
      if (cost[way] != 0) reader.end(call + odd * ticks * bytes / 1024, bytes, slots, &noted);
    }
    std::printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", spent, calls * cost[0], calls * cost[1], pulled);
  }
  return 0;
}
