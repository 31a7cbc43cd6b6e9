// The memory that the connectors of one rank use besides arenas (world.h): pinned host memory of pairs without peer access and
// of the path class pcie, pinned halves of FIFOs to other servers and of the path class net, and the multicast group of a
// switch.
//
// Owner: CudaRank. Threads: the thread that creates the communicator, then none. The calls that say "collective" block until
// the other ranks make them.
#pragma once
#include <array>
#include <memory>
#include <string>

#include "cuda/kernel_memory.h"
#include "cuda/net_halves.h"
#include "cuda/pinned.h"
#include "cuda/team.h"
#include "cuda/world.h"

namespace collc::cuda {

class ConnectorMemory {
 public:
  // Collective: shares the multicast group and the pinned memory that the plan needs. A plan runs other programs if the
  // multicast group is refused, and other path classes if the memory of pcie is.
  Status share(const RankContext &context, const Device &device, const World &world);
  // Collective: finds the addresses of all connectors of this rank, for its GPU. Must follow share().
  Status find_connectors(const RankContext &context, const Device &device, World *world, Connectors *connectors);

  bool has_multicast() const { return multicast_.is_there(); }
  uint64_t multicast_bytes() const { return multicast_.own.bytes; }
  // Returns why no rank may use a path class; empty if the ranks may.
  const std::string &refusal(uint32_t path_class) const { return refusals_[path_class]; }

  void leave(DeferredFrees *frees, const Device *device);

 private:
  Status join_multicast(const RankContext &context, const Device &device, const World &world);
  Status pin_net_halves(const RankContext &context, const NetLayout &layout, World *world, Address *at);

  Team multicast_;
  std::unique_ptr<PinnedMemory> pinned_;  // null: no pair needs any, or it is refused
  std::array<std::string, kClasses> refusals_;
};

}  // namespace collc::cuda
