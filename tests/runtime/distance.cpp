// Classifies the distance between two cores from the times of loads of cache lines (transport/distance.h): `distance LOAD...`,
// in nanoseconds beyond a load from the rank's cache. Prints near or far after each.
#include <cstdio>
#include <cstdlib>

#include "transport/distance.h"

using namespace collc;

int main(int argc, char **argv) {
  constexpr double kTicks = 100000;  // of a nanosecond: an own load, whatever it takes here, is none
  Distances distances;
  distances.begin(2, kTicks);
  for (int i = 1; i < argc; ++i) {
    distances.loaded(1, 1 + static_cast<uint64_t>(std::atof(argv[i]) * kTicks));
    std::puts(distances.is_far(1) ? "far" : "near");
  }
  return 0;
}
