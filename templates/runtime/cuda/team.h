// Memory of all ranks behind one multicast address, for programs inside a switch (NVLS).
//
// Rank 0 makes the multicast object and passes its descriptor. Every rank adds its GPU, then binds memory, and maps that memory
// and the object. The driver requires that all GPUs are added before the first rank binds. If a driver or a fabric refuses a
// step, all ranks learn it, and calls run other programs.
#pragma once
#include "cuda/descriptors.h"

namespace collc::cuda {

// The part of one rank in the multicast group. `own` is its memory, `all` the multicast addresses; both empty: there is no
// group.
struct Team {
  VirtualMemory own;
  VirtualMemory all;

  bool is_there() const { return all.bytes != 0; }
};

// Collective among the ranks of a communicator, while it is made. Where some rank cannot, there is no team on any, and rank 0
// says why. `may_not`: empty, or why this rank does not want one.
Status share_team(const RankContext &context, const Device &device, size_t bytes, const std::string &may_not, Team *team);

}  // namespace collc::cuda
