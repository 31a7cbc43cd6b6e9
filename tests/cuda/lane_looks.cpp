// cuda/link_watch.h: what a rank makes of looks at its lanes of PCIe. Reads lines "now runs began lanes", one for each time
// that the watcher looks; prints how many looks count in a row after each.
#include <cinttypes>
#include <cstdio>

#include "cuda/link_watch.h"

int main() {
  collc::cuda::LaneLooks looks;
  int64_t now = 0, began = 0;
  unsigned runs = 0, lanes = 0;
  while (std::scanf("%" SCNd64 " %u %" SCNd64 " %u", &now, &runs, &began, &lanes) == 4) {
    looks.see(collc::cuda::pack_lane_look(began, lanes), runs != 0, now);
    std::printf("%u ", looks.missing());
  }
  std::printf("%u of %u\n", looks.lately(), looks.most());
  return 0;
}
