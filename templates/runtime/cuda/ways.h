// How ranks reach each other: by GPU memory, or else by host memory that both GPUs map. Found out for every pair when a
// communicator is made, by what the driver says and by a word that one GPU really reads in the other's memory. Processes
// share GPU memory by IPC handles; where some cannot, file descriptors are tried, and taken by all if they join more pairs.
#pragma once
#include <vector>

#include "cuda/descriptors.h"
#include "cuda/device.h"
#include "cuda/pinned_plan.h"
#include "executor/backend.h"

namespace collc::cuda {

// Why a rank does not reach the GPU memory of another one.
enum class Obstacle : unsigned char {
  kNone = 0,
  kElsewhere,     // it is on another server, where a courier brings what is sent
  kForbidden,     // the user of one of the two wishes so
  kNoPeerAccess,  // cuDeviceCanAccessPeer says no, or access cannot be switched on
  kNoHandle,      // the other process cannot make an IPC handle of its memory
  kNotOpened,     // this one cannot open it
  kNoDescriptor,  // the other process cannot make a file descriptor of its memory
  kNotMapped,     // this one cannot map it
  kNotRead,       // the read failed
  kWrongWord,     // it gave something else than what is there
};
const char *describe(Obstacle obstacle);

constexpr size_t kWordBytes = 16;

// A word on a GPU, for others to read.
struct WordPlace {
  unsigned char process[16];  // random, the same for all ranks of a process
  Uuid uuid;
  int32_t device;             // in that process
  uint32_t shareable;         // 0: `handle` could not be made
  Address at;
  IpcHandle handle;
  uint32_t only_host_memory;  // as in RankContext
  uint32_t describable;       // the driver may make file descriptors of its memory
  unsigned char word[kWordBytes];
};

// Of every ordered pair of NCCL ranks, where the first one reads.
struct Obstacles {
  std::vector<Obstacle> all;  // [from * nranks + to]
  uint32_t nranks = 0;

  Obstacle between(uint32_t from, uint32_t to) const { return all[size_t{from} * nranks + to]; }
  // Both ways: the slots of a FIFO are on one side, and its flags on both.
  bool direct(uint32_t a, uint32_t b) const { return between(a, b) == Obstacle::kNone && between(b, a) == Obstacle::kNone; }
  uint32_t direct_pairs() const;
};

struct Ways {
  Obstacles by_handle;      // IPC handles between processes
  Obstacles by_descriptor;  // file descriptors; empty: not tried, handles do
  bool chose_descriptors = false;

  const Obstacles &chosen() const { return chose_descriptors ? by_descriptor : by_handle; }
  bool direct(uint32_t a, uint32_t b) const { return chosen().direct(a, b); }
  // The others of this machine, by rank of the plan.
  PinnedPairs pinned_pairs(const Placement &placement) const;
};

// What finding out took, until the communicator ends: closing and freeing wait for kernels, and others have the word open.
struct WaysMemory {
  Address word = 0;
  std::vector<Address> opened;        // handles of the others'
  std::vector<VirtualMemory> mapped;  // a second word, and those of the others
};

// Collective among the ranks of a communicator, while it is made.
Status find_ways(const RankContext &context, const Device *device, Ways *ways, WaysMemory *memory);

// Random, the same for all ranks of this process.
const unsigned char *process_token();

}  // namespace collc::cuda
