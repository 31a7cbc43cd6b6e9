// What each collective is: rendered from collc/collectives/model.py by `make golden`. Do not edit.
#pragma once
#include "collc/collectives.h"

namespace collc {

// A row of collc.collectives.model.TRAITS.
struct CollectiveTraits {
  Collective collective;
  const char *name;     // nccl-tests'
  bool uses_trees;      // runs programs of its own; else made of transfers
  bool reduces;         // an operation combines the inputs
  bool rooted;          // the caller names a root
  bool root_has_input;  // only the root's input counts
  bool root_has_output;
  bool input_per_rank;  // the input holds `count` elements for every rank
  bool output_per_rank;
};

constexpr CollectiveTraits kTraits[kCollectives] = {
    {Collective::kAllReduce, "all_reduce", true, true, false, false, false, false, false},
    {Collective::kAllGather, "all_gather", true, false, false, false, false, false, true},
    {Collective::kReduceScatter, "reduce_scatter", true, true, false, false, false, true, false},
    {Collective::kBroadcast, "broadcast", true, false, true, true, false, false, false},
    {Collective::kReduce, "reduce", true, true, true, false, true, false, false},
    {Collective::kGather, "gather", false, false, true, false, true, false, true},
    {Collective::kScatter, "scatter", false, false, true, true, false, true, false},
    {Collective::kAllToAll, "alltoall", false, false, false, false, false, true, true},
    {Collective::kSendRecv, "sendrecv", false, false, false, false, false, false, false},
};

constexpr bool in_order(uint32_t n) { return n == 0 || (kTraits[n - 1].collective == Collective(n - 1) && in_order(n - 1)); }
static_assert(in_order(kCollectives), "a collective's number is its row");

constexpr const CollectiveTraits &traits(Collective collective) { return kTraits[static_cast<uint32_t>(collective)]; }

}  // namespace collc
