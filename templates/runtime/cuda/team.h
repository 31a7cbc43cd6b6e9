// Memory of all ranks behind one multicast address, for programs inside a switch (NVLS).
//
// Rank 0 makes the multicast object and hands its descriptor on; every rank adds its GPU, then binds memory of its own, and
// maps that memory and the object. The driver wants all GPUs added before the first binds. Whatever a driver or a fabric
// refuses, the ranks find out together, and those programs are left alone.
#pragma once
#include "cuda/descriptors.h"

namespace collc::cuda {

// Of one rank. `own` is its memory, `all` the addresses that stand for those of all ranks; both empty: there is no team.
struct Team {
  VirtualMemory own;
  VirtualMemory all;

  bool is_there() const { return all.bytes != 0; }
};

// Collective among the ranks of a communicator, while it is made. Where some rank cannot, there is no team on any, and rank 0
// says why. `may_not`: empty, or why this rank does not want one.
Status share_team(const RankContext &context, const Device &device, size_t bytes, const std::string &may_not, Team *team);

}  // namespace collc::cuda
