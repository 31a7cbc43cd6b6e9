// The size limits of the transports of the host target. The best sizes differ between processors. `collc tune --machine`
// measures copies (base/measure_copies.h) and writes the sizes into a file. The values here apply without a file. A size
// changes the time of a call, and of its result only the payload of a NaN in sums of two ranks.
//
//   collc-machine/2
//   machine <collc_machine()>     the machine of the measurement
//   kernel <release>              the release of the operating system's kernel, as of uname
//   kernel_copies 16384 8192      one line per member of Thresholds, in this order: bytes for near cores, then for far cores;
//   ...                           `never`, or `embedded` for a value that was not measured
//   end
//
// '#' begins a comment. Two cores are near if they hand over a cache line fast, usually through a common cache; all others are
// far (transport/distance.h measures it).
#pragma once
#include <cstdint>

#include "base/status.h"

namespace collc {

// In bytes; UINT64_MAX means never. A member and its `_end` are the range [member, member_end). "The kernel" is the operating
// system's: it copies between the memories of two processes.
struct Thresholds {
  // The kernel copies an input that other processes read, if each rank has a core.
  uint64_t kernel_copies = 16 << 10;
  uint64_t kernel_copies_end = UINT64_MAX;
  // The same if ranks share cores.
  uint64_t kernel_copies_crowded = 64 << 10;
  // The kernel copies chunks that were just computed or received.
  uint64_t kernel_copied_chunks = 16 << 10;
  // Results are stored past the caches.
  uint64_t streamed_results = 8 << 20;
  // Outputs of a broadcast, all ranks together, are stored past the caches if each rank has a core; 0: from a third of the last
  // cache on, if each output has at least streamed_results bytes.
  uint64_t streamed_broadcasts = 0;
  // Calls with results of this size write slots past the caches until both ways are measured (transport/slot_ways.h).
  uint64_t streamed_slots = UINT64_MAX;
  uint64_t streamed_broadcast_slots = UINT64_MAX;  // the same for broadcasts
  // The kernel copies a broadcast out of the root's memory until both ways are measured (transport/pull_ways.h).
  uint64_t pulled_broadcasts = UINT64_MAX;
  uint64_t pulled_broadcasts_end = UINT64_MAX;
  // The kernel copies inputs of reductions out of other processes.
  uint64_t kernel_sums = UINT64_MAX;
  uint64_t kernel_sums_end = UINT64_MAX;
  // In an all_reduce of two ranks, both ranks reduce everything, from inputs that the kernel copies.
  uint64_t sums_everywhere = UINT64_MAX;
  uint64_t sums_everywhere_end = UINT64_MAX;
};

struct MachineThresholds {
  Thresholds near_cores = embedded_near(), far_cores = embedded_far();

  const Thresholds &at(bool is_far) const { return is_far ? far_cores : near_cores; }

  static Thresholds embedded_near() {
    Thresholds thresholds;
    thresholds.kernel_copies = 48 << 10;
    thresholds.sums_everywhere = 64 << 10;
    thresholds.sums_everywhere_end = 128 << 10;
    return thresholds;
  }
  static Thresholds embedded_far() {
    Thresholds thresholds;
    thresholds.kernel_sums = 64 << 10;
    thresholds.sums_everywhere = 16 << 10;
    thresholds.sums_everywhere_end = 8 << 20;
    return thresholds;
  }
};

// Returns the thresholds of the file that COLLC_MACHINE names or, without this variable, of the file that `collc tune
// --machine` left in the cache. If the file is missing or refused, returns the values above. With `reports_errors`, a missing
// or refused file of COLLC_MACHINE is reported on stderr once, and a refused file of the cache in the log. A file of the cache
// that others may write is skipped silently.
MachineThresholds find_thresholds(bool reports_errors);

// Reads a file for this machine. Fails with one sentence if the file has another form, or is for another machine or kernel;
// `thresholds` then keep their values.
Status read_thresholds(const char *path, MachineThresholds *thresholds);

}  // namespace collc
