// What a rank has for calls by copy engines, and what it says of that.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "cuda/copy_engines.h"
#include "cuda/rank.h"
#include "cuda/staged.h"

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

// Whether any call that copy engines may do has a part over PCIe beside NVLink.
bool copies_over_pcie(const Tables &tables, const Allocation &allocation) {
  const Program *const first = tables.programs + allocation.first_program;
  return std::any_of(first, first + allocation.nprograms,
                     [](const Program &one) { return one.pcie_weight != 0 && !is_wired(one) && is_copied(one.collective); });
}

constexpr uint64_t kRangeAlignment = 128;  // of what lanes carry

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
  else if (lacking != settings.end())
    agreed->no_copies = format("the GPU or the driver of rank %zu lacks stream memory operations of 64 bits",
                               static_cast<size_t>(lacking - settings.begin()));
  else if (is_gpu_shared(context_, settings))
    agreed->no_copies = "several ranks of a process share a GPU";
  if (!agreed->no_copies.empty()) return;
  const uint64_t chunk = agreed->overrides.chunk_bytes;
  const auto use = [&](CopyLane lane) {
    const uint64_t most = StagedCopies::most_piece(lane);
    agreed->copied_piece[static_cast<uint32_t>(lane)] = chunk == 0 ? most : std::min(chunk, most);
  };
  if (agreed->pinned.empty()) use(CopyLane::kGpu);
  if (!agreed->pinned.empty() || copies_over_pcie(*context_.tables, *context_.placement.allocation)) use(CopyLane::kHost);
}

// Whether any rank can use its own is not known yet.
Status CudaRank::make_copies(const Agreed &agreed) {
  const uint32_t nranks = context_.nranks;
  char *const words = context_.segment->memory() + DeferredFrees::words_bytes(nranks);
  Address words_at = 0;
  Status status = world_->pin(words, CopyWords::bytes(nranks));
  if (status.ok()) status = check(driver().host_address(&words_at, words, 0), "mapping pinned memory");
  const auto make = [&](CopyLane lane, std::vector<Address> staging) {
    const auto number = static_cast<uint32_t>(lane);
    copies_[number] = std::make_unique<StagedCopies>(device_, lane, context_.rank, words, words_at, std::move(staging),
                                                     agreed.copied_piece[number]);
    return copies_[number]->begin();
  };
  if (const uint64_t piece = agreed.copied_piece[static_cast<uint32_t>(CopyLane::kHost)]; piece != 0) {
    const size_t bytes = (kStagingSlots * piece + PinnedPlan::kAlign - 1) / PinnedPlan::kAlign * PinnedPlan::kAlign;
    COLLC_RETURN_IF_FAILED(PinnedMemory::share_slots(context_, device_->number, bytes, &host_slots_, &status));
    std::vector<Address> staging(nranks);
    for (uint32_t rank = 0; rank < nranks && status.ok(); ++rank) staging[rank] = host_slots_->slots() + rank * bytes;
    if (status.ok()) status = make(CopyLane::kHost, std::move(staging));
  }
  if (agreed.copied_piece[static_cast<uint32_t>(CopyLane::kGpu)] == 0) return status;
  std::vector<Address> staging(nranks);
  for (uint32_t rank = 0; rank < nranks && status.ok(); ++rank)
    status = world_->staging_of(context_.placement.plan_rank[rank], device_, &staging[rank]);
  return status.ok() ? make(CopyLane::kGpu, std::move(staging)) : status;
}

Status CudaRank::decide_copies(const Agreed &agreed) {
  if (copies_from_ == 0) return {};
  std::string why = agreed.no_copies;
  if (why.empty()) {
    CopyProblem mine = {};
    if (const Status made = make_copies(agreed); !made.ok())
      std::snprintf(mine.text, sizeof mine.text, "%s", made.text().c_str());
    std::vector<CopyProblem> all;
    COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &all));
    for (uint32_t rank = 0; rank < context_.nranks && why.empty(); ++rank)
      if (all[rank].text[0] != '\0') why = format("rank %u: %s", rank, all[rank].text);
    if (!why.empty()) {
      copies_ = {};
      dispose(std::move(host_slots_));
    }
  }
  const bool in_groups = world_->copies_between_all();
  if (context_.rank == 0 && (in_groups || why.empty()))
    log(LogLevel::kInfo, "copy engines do all_gathers and broadcasts of %u bytes and more%s%s%s", copies_from_,
        agreed.pinned.empty() ? "" : " through pinned host memory",
        why.empty() ? "" : " that one group has of all ranks; kernels do others: ", why.c_str());
  if (context_.rank == 0 && !in_groups && !why.empty())
    log(LogLevel::kWarn, "COLLC_COPY_ENGINES is not followed: %s", why.c_str());
  if (!in_groups && !why.empty()) copies_from_ = 0;
  return {};
}

// The lane in host memory carries what the weights give to pcie; all, where there is no other.
std::array<CopyRange, kCopyLanes> CudaRank::start_copies(const Call &call, bool captured) {
  const uint64_t bytes = bytes_of(call);
  const uint32_t weights = start_copy_weights(call, captured);
  const uint64_t nvlink = weights >> 8 * kNvlinkPart & 0xff, pcie = weights >> 8 * kPciePart & 0xff;
  uint64_t near = bytes;
  if (pcie != 0) near = bytes / (nvlink + pcie) * nvlink / kRangeAlignment * kRangeAlignment;
  if (copies(CopyLane::kGpu) == nullptr) near = 0;
  return {CopyRange{0, near}, CopyRange{near, bytes - near}};
}

// Before all that ends a look: streams that wait here know nothing of the flag of kernels.
void CudaRank::look_at_copies() {
  if (!has_copies()) return;
  const bool over = context_.stopped() || context_.segment->aborted();
  for (const auto &lane : copies_) {
    if (lane == nullptr) continue;
    if (over) {
      lane->release();
      continue;
    }
    if (context_.timeout == 0) continue;
    const std::string late = lane->find_late(now_ms(), context_.timeout);
    if (!late.empty())
      return end(fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for %s, by copy engines%s", context_.timeout,
                      context_.rank, late.c_str(), describe_missing().c_str()));
  }
}

// For calls that have not ended. Words are pinned until they have.
void CudaRank::leave_copies() {
  for (const auto &lane : copies_)
    if (lane != nullptr) lane->release();
}

}  // namespace collc::cuda
