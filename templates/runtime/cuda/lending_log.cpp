// What a rank says of the buffers that it and others read where they stand.
#include <set>
#include <string>

#include "base/log.h"
#include "cuda/rank.h"

namespace collc::cuda {

// "rank 0: buffers of ncclMemAlloc are read where they stand between it and rank(s) 1, 2".
void CudaRank::log_lending() const {
  if (!logs(LogLevel::kInfo)) return;
  std::set<uint32_t> peers;
  for (const uint32_t peer : world_->by_address_with(plan_rank_)) peers.insert(context_.placement.nccl_rank[peer]);
  std::string text;
  for (const uint32_t peer : peers) text += format("%s %u", text.empty() ? "" : ",", peer);
  if (text.empty())
    log(LogLevel::kInfo, "rank %u: no rank reads its buffers where they stand, nor it theirs", context_.rank);
  else
    log(LogLevel::kInfo, "rank %u: buffers of ncclMemAlloc are read where they stand between it and rank(s)%s%s", context_.rank,
        text.c_str(), lends_ ? "" : "; it lends none (COLLC_DIRECT=0)");
}

}  // namespace collc::cuda
