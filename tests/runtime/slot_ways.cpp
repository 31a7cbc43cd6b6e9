// Runs the choice of a writer (transport/slot_ways.h) on given costs: `slot_ways FIRST SLOTS SEED PHASE...`. A phase is
// CHUNKS:IN,OUT,PAST_IN,PAST_OUT in ticks per KiB (OUT and PAST_OUT 0: the reader learns nothing), or "new", which forgets
// everything. The first chunks after a change still have the old cost, and one chunk in a hundred costs 100 times as much, as on
// real machines. Prints for each phase the cost of its chunks, the costs if all chunks had gone through or past the caches, and
// the number of chunks that went past them.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "transport/slot_ways.h"

using namespace collc;

int main(int argc, char **argv) {
  const uint32_t first = static_cast<uint32_t>(std::atoi(argv[1])), slots = static_cast<uint32_t>(std::atoi(argv[2]));
  std::mt19937_64 random(static_cast<uint64_t>(std::atoi(argv[3])));
  const uint64_t bytes = 64 << 10;
  SlotWays ways;
  WayRun reader, truth;
  uint32_t read[2] = {};
  for (int p = 4; p < argc; ++p) {
    if (std::strcmp(argv[p], "new") == 0) {
      ways = {}, reader = {}, truth = {};
      read[0] = read[1] = 0;
      continue;
    }
    uint64_t chunks, in[2], out[2];
    if (std::sscanf(argv[p], "%" SCNu64 ":%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64, &chunks, &in[0], &out[0], &in[1],
                    &out[1]) != 5)
      return 1;
    uint64_t spent = 0, past = 0;
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t way = ways.next(first, slots, [&](uint32_t of) { return read[of]; });
      const uint32_t like = truth.settled(way, slots) ? way : 1 - way;
      const uint64_t odd = random() % 100 == 0 ? 100 : 1;
      ways.wrote(way, slots, odd * in[like] * bytes / 1024, bytes);
      if (reader.settled(way, slots) && out[way] != 0)
        read[way] = learned_cost(read[way], odd * out[like] * bytes / 1024, bytes);
      spent += in[way] + out[way];
      past += way;
    }
    std::printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", spent, chunks * (in[0] + out[0]),
                chunks * (in[1] + out[1]), past);
  }
  return 0;
}
