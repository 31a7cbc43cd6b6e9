// What a rank has for calls by copy engines, and what it says of that.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "cuda/rank.h"

namespace collc::cuda {
namespace {

// Why a rank has no copies of its own to offer; empty: it has.
struct CopyProblem {
  char text[200];
};

// A stream that waits may hold up others of its GPU and process, which it then may wait for.
bool is_gpu_shared(const RankContext &context, const std::vector<RankSettings> &settings) {
  for (size_t a = 0; a < settings.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (context.processes[a] == context.processes[b] && std::memcmp(&settings[a].uuid, &settings[b].uuid, sizeof(Uuid)) == 0)
        return true;
  return false;
}

}  // namespace

Status CudaRank::read_copies(RankSettings *settings) {
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_COPY_ENGINES", UINT32_MAX, &copies_from_));
  settings->copies_from = copies_from_;
  settings->orders_copies = driver().memory_operations != nullptr && has_attribute(*device_, kMemoryOperations64);
  return {};
}

void CudaRank::agree_on_copies(const std::vector<RankSettings> &settings, Agreed *agreed) const {
  if (copies_from_ == 0) return;
  const auto lacking = std::find_if(settings.begin(), settings.end(), [](const auto &one) { return one.orders_copies == 0; });
  if (agreed->elsewhere.any())
    agreed->no_copies = "some ranks are on other servers";
  else if (!agreed->pinned.empty())
    agreed->no_copies = "some GPUs do not write into each other's memory";
  else if (lacking != settings.end())
    agreed->no_copies = format("the GPU or the driver of rank %zu lacks stream memory operations of 64 bits",
                               static_cast<size_t>(lacking - settings.begin()));
  else if (is_gpu_shared(context_, settings))
    agreed->no_copies = "several ranks of a process share a GPU";
  if (!agreed->no_copies.empty()) return;
  const uint64_t chunk = agreed->overrides.chunk_bytes;
  agreed->copied_piece = chunk == 0 ? StagedCopies::kMostPiece : std::min(chunk, StagedCopies::kMostPiece);
}

// Whether any rank can use its own is not known yet.
Status CudaRank::make_copies() {
  const CopyWords layout(context_.nranks);
  char *const words = context_.segment->memory() + Remains::words_bytes(context_.nranks);
  Address words_at = 0;
  COLLC_RETURN_IF_FAILED(world_->pin(words, layout.bytes()));
  COLLC_RETURN_IF_FAILED(check(driver().host_address(&words_at, words, 0), "mapping pinned memory"));
  std::vector<Address> staging(context_.nranks);
  for (uint32_t rank = 0; rank < context_.nranks; ++rank)
    COLLC_RETURN_IF_FAILED(world_->staging_of(context_.placement.plan_rank[rank], device_, &staging[rank]));
  copies_ = std::make_unique<StagedCopies>(device_, context_.rank, words, words_at, std::move(staging), world_->copied_piece());
  return copies_->begin();
}

Status CudaRank::decide_copies(const Agreed &agreed) {
  if (copies_from_ == 0) return {};
  std::string why = agreed.no_copies;
  if (why.empty()) {
    CopyProblem mine = {};
    if (const Status made = make_copies(); !made.ok()) std::snprintf(mine.text, sizeof mine.text, "%s", made.text().c_str());
    std::vector<CopyProblem> all;
    COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &all));
    for (uint32_t rank = 0; rank < context_.nranks && why.empty(); ++rank)
      if (all[rank].text[0] != '\0') why = format("rank %u: %s", rank, all[rank].text);
    if (!why.empty()) copies_ = nullptr;
  }
  const bool in_groups = world_->copies_between_all();
  if (context_.rank == 0 && (in_groups || why.empty()))
    log(LogLevel::kInfo, "copy engines do all_gathers and broadcasts of %u bytes and more%s%s", copies_from_,
        why.empty() ? "" : " that one group has of all ranks; kernels do others: ", why.c_str());
  if (context_.rank == 0 && !in_groups && !why.empty())
    log(LogLevel::kWarn, "COLLC_COPY_ENGINES is not followed: %s", why.c_str());
  if (!in_groups && !why.empty()) copies_from_ = 0;
  return {};
}

// Before all that ends a look: streams that wait here know nothing of the flag of kernels.
void CudaRank::look_at_copies() {
  if (copies_ == nullptr) return;
  if (context_.stopped() || context_.segment->aborted()) return copies_->release();
  if (context_.timeout == 0) return;
  const std::string late = copies_->find_late(now_ms(), context_.timeout);
  if (!late.empty())
    end(fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for %s, by copy engines", context_.timeout,
             context_.rank, late.c_str()));
}

// Words are pinned until its last call has ended.
void CudaRank::leave_copies(bool ended) {
  if (copies_ == nullptr) return;
  if (!ended) copies_->release();
  copies_ = nullptr;
}

}  // namespace collc::cuda
