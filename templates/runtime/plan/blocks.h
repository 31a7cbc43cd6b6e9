// Converts block numbers of a plan into NCCL's.
#pragma once
#include <cstdint>
#include <vector>

#include "collc/collectives.h"

namespace collc {

// Returns the block number that place_block() expects. A plan numbers blocks by plan rank, in alltoall by source and
// destination (source * ranks + destination); NCCL numbers them by NCCL rank. `nccl_rank` is indexed by plan rank; if it is
// empty, both numberings are equal. Collectives whose blocks belong to no rank keep their numbers.
inline uint32_t nccl_block(Collective collective, uint32_t block, const std::vector<uint32_t> &nccl_rank) {
  const auto nranks = static_cast<uint32_t>(nccl_rank.size());
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return block < nranks ? nccl_rank[block] : block;
    case Collective::kAllToAll:
      return nranks == 0 ? block : nccl_rank[block / nranks] * nranks + nccl_rank[block % nranks];
    default:
      return block;
  }
}

}  // namespace collc
