// The blocks of a plan as the caller numbers them.
#pragma once
#include <cstdint>
#include <vector>

#include "collc/collectives.h"

namespace collc {

// A block belongs to a rank of the plan (alltoall: to a pair of them); place_block() wants that rank's number in NCCL.
// `nccl_rank`: by rank of the plan; empty: the same numbers.
inline uint32_t nccl_block(Collective collective, uint32_t block, const std::vector<uint32_t> &nccl_rank) {
  const auto n = static_cast<uint32_t>(nccl_rank.size());
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return block < n ? nccl_rank[block] : block;
    case Collective::kAllToAll:
      return n == 0 ? block : nccl_rank[block / n] * n + nccl_rank[block % n];
    default:
      return block;
  }
}

}  // namespace collc
