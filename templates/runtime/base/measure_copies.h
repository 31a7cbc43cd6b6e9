// Measures copies between two cores of this machine, for `collc tune --machine`. Each function starts two threads, waits for
// them, and blocks for the whole measurement.
#pragma once
#include <cstdint>

namespace collc {

// The ways of moving bytes between the buffers of two threads on two cores. One-way: the threads take turns as sender, as
// roots of broadcasts do. Both: each thread sends to the other at the same time and also copies within its own memory, as in
// an all_gather. Own: each thread copies within its own memory only, as when ranks share a core. "Streamed" sides use
// streaming stores (base/copy.h). collc/tune/machine.py has the same list in the same order.
enum class Way : uint32_t {
  kSlots,          // one-way, through slots
  kStreamedSlots,  // streamed into the slots
  kSlotsStreamed,  // streamed out of the slots
  kAllStreamed,    // streamed into and out of the slots
  kKernel,         // process_vm_readv
  kBothSlots,      // both, through slots
  kBothStreamedSlots,
  kBothSlotsStreamed,
  kBothKernel,
  kBothSummedSlots,  // as in a reduce_scatter: adds the data in the slots to the data of the receiver
  kBothSummedStreamed,
  kBothSummedKernel,  // the kernel first copies each chunk into memory of the receiver that stays in its caches
  kOwn,  // a plain copy
  kOwnStreamed,
  kOwnSlots,  // through the thread's own slots
  kOwnKernel,
  // no data: the load of a cache line that the other core has just written, minus a load from the core's own cache
  // (line_load.h)
  kLineLoad,
  kCount,
};

// Measures each way at each of `nsizes` sizes (bytes), once. `microseconds` receives nsizes x kCount values, the ways of a
// size in a row: microseconds per call; -1 if the system refuses the way. One thread runs on the first core that this process
// may use, the other on its core number `other`, counted from 0. Returns false if memory or a thread cannot be had.
bool measure_copies(const uint64_t *sizes, uint32_t nsizes, uint32_t other, double *microseconds);

// Returns how many cores this process may use. Sets `microseconds` of each of the first `most` of them to the load time
// (Way::kLineLoad) between the first core and this core: 0 for the first core itself, -1 if a thread cannot be started.
uint32_t measure_lines(uint32_t most, double *microseconds);

}  // namespace collc
