// From which sizes on the host target moves data which way. That differs between processors: `collc tune --machine` measures
// copies (base/measure_copies.h) and writes what follows into a file. Without one the defaults count: the ways that lost
// least on the processors that were measured. Which way is taken never makes a result wrong.
//
//   collc-machine/2
//   machine <collc_machine()>        what it was measured on
//   kernel <release of the system>
//   kernel_copies 16384 8192         a line for each member of Thresholds, in this order, and nothing else: where the cores of
//                                    two ranks are near each other, and where they are far apart (transport/distance.h); `embedded`
//                                    where that was not measured
//   ...
//   end
//
// '#' begins a comment. Sizes decide how long a call takes and never what it computes.
#pragma once
#include <cstdint>

#include "base/status.h"

namespace collc {

// Bytes; UINT64_MAX: never.
struct Thresholds {
  uint64_t kernel_copies = 16 << 10;  // inputs that the kernel copies into results of other processes, from here on
  uint64_t kernel_copies_end = UINT64_MAX;  // and below this
  uint64_t kernel_copies_crowded = 64 << 10;  // the same where ranks share cores
  uint64_t kernel_copied_chunks = 16 << 10;  // the same of chunks that have just been computed or received
  uint64_t streamed_results = 8 << 20;  // results that go past the caches
  uint64_t streamed_broadcasts = 0;  // of broadcasts where cores are free: all outputs; 0: a third of the last cache
  uint64_t streamed_slots = UINT64_MAX;  // results whose chunks at first go into slots past the caches (transport/slot_ways.h)
  uint64_t streamed_broadcast_slots = UINT64_MAX;  // the same of broadcasts
  uint64_t pulled_broadcasts = UINT64_MAX;  // broadcasts that the kernel copies out of the root's memory
  uint64_t pulled_broadcasts_end = UINT64_MAX;  // and below this
  uint64_t kernel_sums = UINT64_MAX;  // inputs that the kernel copies out of other processes to be reduced, from here on
  uint64_t kernel_sums_end = UINT64_MAX;  // and below this
  uint64_t sums_everywhere = UINT64_MAX;  // all_reduces of 2 ranks that both reduce themselves, of what the kernel copies
  uint64_t sums_everywhere_end = UINT64_MAX;  // and below this
};

// By how far cores are apart.
struct MachineThresholds {
  Thresholds near = embedded_near(), far = embedded_far();
  const Thresholds &at(bool is_far) const { return is_far ? far : near; }
  static Thresholds embedded_near() {
    Thresholds near;
    near.kernel_copies = 48 << 10;
    near.sums_everywhere = 64 << 10;
    near.sums_everywhere_end = 128 << 10;
    return near;
  }
  static Thresholds embedded_far() {
    Thresholds far;
    far.kernel_sums = 64 << 10;
    far.sums_everywhere = 16 << 10;
    far.sums_everywhere_end = 8 << 20;
    return far;
  }
};

// Those of COLLC_MACHINE, else of the file that `collc tune --machine` has left in the cache; the defaults where there is
// none for this machine. Where `reports`, a file that COLLC_MACHINE names and that is refused is told on stderr, once.
MachineThresholds find_thresholds(bool reports);

// Reads a file for this machine; fails, in one sentence, if a word of it is not as above.
Status read_thresholds(const char *path, MachineThresholds *thresholds);

}  // namespace collc
