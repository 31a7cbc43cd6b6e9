// Reading what another rank has in memory of its own, without a copy into a slot.
#pragma once
#include <string>
#include <vector>

#include "bootstrap/exchange.h"
#include "transport/buffers.h"
#include "plan/call.h"
#include "plan/overrides.h"
#include "plan/thresholds.h"

namespace collc {

// How far a rank sees into another's private memory.
enum class Reach : uint8_t {
  kWire,    // on another machine: slots here stand for slots there (wire/)
  kSlots,   // not at all: everything goes through slots
  kKernel,  // the kernel copies out of the other process (process_vm_readv), where the system allows that
  kShared,  // both are in one process: addresses mean the same
};

// How the ranks of a communicator can access each other's memory, probed once at creation.
class Neighbours {
 public:
  // Collective among the ranks, which must have the same overrides and have `understood` theirs. COLLC_DIRECT=0 leaves
  // only slots. `far`: COLLC_CORES says that the others are far away.
  Status probe(const Exchange &round, const Placement &placement, uint32_t rank, Status understood, const Overrides &overrides,
               bool far = false);

  // How `reader` reads this rank's memory.
  Reach reach_of(uint32_t reader) const { return reach_of_[reader]; }
  // How this rank reads the memory of `peer`.
  Reach reach_into(uint32_t peer) const { return reach_into_[peer]; }
  // True if `reader` can map this process' buffers of ncclMemAlloc.
  bool maps_of(uint32_t reader) const { return maps_of_[reader]; }
  int process_of(uint32_t peer) const { return processes_[peer]; }
  // True if every rank sees every other's buffers, given that they are of ncclMemAlloc where processes differ; the same on
  // all ranks.
  bool see_all() const { return see_all_; }
  // True if all ranks are in one process.
  bool share_all() const { return share_all_; }
  // True if the kernel copies between every two ranks, each a process of its own; the same on all ranks.
  bool copy_all() const { return copy_all_; }
  // True if COLLC_CORES says so on any rank; the same on all ranks.
  bool given_far() const { return given_far_; }
  // Those of the machine's first rank, so that all ranks there move data alike.
  const MachineThresholds &thresholds() const { return thresholds_; }
  // Copies from the memory of `peer`, which is kKernel.
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
