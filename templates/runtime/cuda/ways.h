// How ranks reach each other: by GPU memory, or else by host memory that both GPUs map. At creation every pair asks the driver,
// and one GPU really reads a word in the other's memory. Processes
// share GPU memory by file descriptors: that memory lives as long as its last mapping, whatever the process that allocated it
// does. Where descriptors fail for some pairs, IPC handles are tried, and taken by all ranks if they join more pairs.
#pragma once
#include <vector>

#include "cuda/deferred_frees.h"
#include "cuda/device.h"
#include "cuda/pinned_plan.h"
#include "executor/backend.h"

namespace collc::cuda {

// Why a rank does not reach the GPU memory of another one.
enum class Obstacle : unsigned char {
  kNone = 0,
  kElsewhere,  // it is on another server; proxies send chunks there
  kForbidden,  // the user of one of the two wishes so
  kNoPeerAccess,  // cuDeviceCanAccessPeer says no, or access cannot be switched on
  kNoHandle,  // the other process cannot make an IPC handle of its memory
  kNotOpened,  // this one cannot open it
  kNoDescriptor,  // the other process cannot make a file descriptor of its memory
  kNotMapped,  // this one cannot map it
  kNotRead,  // the read failed
  kWrongWord,  // the read gave a wrong word
};
const char *describe(Obstacle obstacle);

// Where a rank is, for the others.
struct RankPlace {
  unsigned char process[16];  // random, the same for all ranks of a process
  Uuid uuid;
  const Device *device;  // in that process
  uint32_t only_host_memory;  // as in RankContext
};

// The obstacle of every ordered pair of NCCL ranks; the first rank reads.
struct Obstacles {
  std::vector<Obstacle> all;  // [from * nranks + to]
  uint32_t nranks = 0;

  Obstacle between(uint32_t from, uint32_t to) const { return all[size_t{from} * nranks + to]; }
  // Both ways: the slots of a FIFO are on one side, and its flags on both.
  bool direct(uint32_t a, uint32_t b) const { return between(a, b) == Obstacle::kNone && between(b, a) == Obstacle::kNone; }
  uint32_t direct_pairs() const;
};

struct Ways {
  Obstacles by_descriptor;  // between processes; empty: not tried, there is one process
  Obstacles by_handle;  // IPC handles between processes; empty: not tried, descriptors do
  bool chose_descriptors = false;

  const Obstacles &chosen() const { return chose_descriptors ? by_descriptor : by_handle; }
  bool direct(uint32_t a, uint32_t b) const { return chosen().direct(a, b); }
  // The others of this machine, by rank of the plan.
  PinnedPairs pinned_pairs(const Placement &placement) const;
};

// Collective among the ranks of a communicator, while it is made. `frees` takes what finding out took: closing and freeing wait
// for kernels, and others have IPC handles of this rank's word open.
Status find_ways(const RankContext &context, const Device *device, Ways *ways, DeferredFrees *frees);

// Random, the same for all ranks of this process.
const unsigned char *process_token();

}  // namespace collc::cuda
