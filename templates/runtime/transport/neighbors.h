// How the ranks of a communicator can read each other's private memory, without a copy into a slot. Probed once, at creation,
// by the thread that creates the communicator; probe() blocks in exchanges. Constant afterwards.
#pragma once
#include <string>
#include <vector>

#include "bootstrap/exchange.h"
#include "transport/buffers.h"
#include "plan/call.h"
#include "plan/overrides.h"
#include "plan/thresholds.h"

namespace collc {

// How a rank reads the memory of another rank.
enum class Reach : uint8_t {
  kWire,    // on another machine: slots on both machines represent one slot (wire/)
  kSlots,   // not at all: all data go through slots
  kKernel,  // the kernel copies from the other process (process_vm_readv), if the system allows it
  kShared,  // both are in one process, so addresses mean the same
};

// Access between this rank and all others.
class Neighbors {
 public:
  // Probes all ranks. All ranks call it, in the same round. `understood` is the outcome of reading this rank's variables; an
  // error is reported after the exchanges, which the other ranks wait for. All ranks must have the same overrides.
  // COLLC_DIRECT=0 on either rank of a pair leaves only slots between them. `far`: COLLC_CORES says that other ranks are far
  // away.
  Status probe(const Exchange &round, const Placement &placement, uint32_t rank, Status understood, const Overrides &overrides,
               bool far = false);

  // How `reader` reads the memory of this rank.
  Reach reach_of(uint32_t reader) const { return reach_of_[reader]; }
  // How this rank reads the memory of `peer`.
  Reach reach_into(uint32_t peer) const { return reach_into_[peer]; }
  // Returns whether `reader` can map the ncclMemAlloc buffers of this process.
  bool maps_of(uint32_t reader) const { return maps_of_[reader]; }
  int process_of(uint32_t peer) const { return processes_[peer]; }
  // Returns whether every rank can access every other rank's buffers, if these are of ncclMemAlloc where processes differ.
  // Equal on all ranks.
  bool see_all() const { return see_all_; }
  // Returns whether all ranks are in one process.
  bool share_all() const { return share_all_; }
  // Returns whether all ranks are in different processes and the kernel copies between any two of them. Equal on all ranks.
  bool copy_all() const { return copy_all_; }
  // Returns whether COLLC_CORES says "far" on any rank. Equal on all ranks.
  bool given_far() const { return given_far_; }
  // Returns the thresholds of the first rank of this machine, so that all its ranks move data in the same way.
  const MachineThresholds &thresholds() const { return thresholds_; }
  // Copies from the memory of `peer`, which must be kKernel. Fails if that process has died.
  Status read(uint32_t peer, uint64_t from, void *to, uint64_t bytes) const;

 private:
  std::vector<Reach> reach_of_, reach_into_;  // by NCCL rank
  std::vector<bool> maps_of_;
  std::vector<int> processes_;
  std::vector<std::string> names_;
  bool see_all_ = false, share_all_ = false, copy_all_ = false, given_far_ = false;
  MachineThresholds thresholds_;
};

}  // namespace collc
