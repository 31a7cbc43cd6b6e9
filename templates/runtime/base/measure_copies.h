// What copies between two cores cost on this machine: for `collc tune --machine`.
#pragma once
#include <cstdint>

namespace collc {

// The ways of moving bytes from the buffer of one thread into that of another on another core, where there is one. One-way:
// they take turns, as roots of broadcasts do. Both: each to the other at the same time, beside a copy within its own memory,
// as in an all_gather. Own: each thread within its own memory, as where ranks share a core.
enum class Way : uint32_t {
  kSlots,          // one-way, through slots
  kStreamedSlots,  // into slots past the caches
  kSlotsStreamed,  // out of slots past the caches
  kAllStreamed,    // in and out
  kKernel,         // process_vm_readv
  kBothSlots,      // both, through slots
  kBothStreamedSlots,
  kBothSlotsStreamed,
  kBothKernel,
  kBothSummedSlots,  // and added up with what stands there, out of slots, as in a reduce_scatter
  kBothSummedStreamed,
  kBothSummedKernel,  // the kernel copies each chunk into the caches first
  kOwn,  // a copy
  kOwnStreamed,
  kOwnSlots,  // through slots
  kOwnKernel,
  kLineLoad,  // no bytes: a load of a line that the other core has just written, beyond one of the own cache (line_load.h)
  kCount,
};

// Microseconds of a call of each way at each of `nsizes` sizes in bytes, in one round of all of them, by size and way; -1 where
// the system refuses. One thread runs on the first core that this process may use, the other on number `other`, from 0. False
// where there is no memory or thread.
bool measure_copies(const uint64_t *sizes, uint32_t nsizes, uint32_t other, double *microseconds);

// How many cores this process may use, and of the first `most` of them the microseconds of such a load between the first and each;
// -1 where there is no thread.
uint32_t measure_lines(uint32_t most, double *microseconds);

}  // namespace collc
