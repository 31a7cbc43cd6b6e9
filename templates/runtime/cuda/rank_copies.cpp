#include "cuda/rank_copies.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/environment.h"
#include "base/log.h"
#include "cuda/staged.h"
#include "plan/weights.h"

namespace collc::cuda {
namespace {

// Why a rank cannot make lanes; empty: it can.
struct CopyProblem {
  char text[200];
};

// A stream that waits may hold up other streams of its GPU and process. It may also wait for them.
bool is_gpu_shared(const RankContext &context, const std::vector<RankSettings> &settings) {
  for (size_t a = 0; a < settings.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (context.processes[a] == context.processes[b] && std::memcmp(&settings[a].uuid, &settings[b].uuid, sizeof(Uuid)) == 0)
        return true;
  return false;
}

// Returns true if a call that copy engines may do has a part over PCIe besides NVLink.
bool copies_over_pcie(const Tables &tables, const Allocation &allocation) {
  const Program *const first = tables.programs + allocation.first_program;
  return std::any_of(first, first + allocation.nprograms,
                     [](const Program &one) { return one.pcie_weight != 0 && !is_wired(one) && is_copied(one.collective); });
}

constexpr uint64_t kRangeAlignment = 128;  // bytes, of the ranges of lanes

}  // namespace

Status RankCopies::read_settings(const Device &device, RankSettings *settings) {
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_COPY_ENGINES", UINT32_MAX, &least_bytes_));
  settings->copies_from = least_bytes_;
  settings->orders_copies = driver().memory_operations != nullptr && has_attribute(device, kMemoryOperations64);
  return {};
}

void RankCopies::agree(const std::vector<RankSettings> &settings, Agreed *agreed) const {
  if (least_bytes_ == 0) return;
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

Status RankCopies::make_lanes(const Device &device, const Agreed &agreed, World *world) {
  const uint32_t nranks = context_.nranks;
  char *const words = context_.segment->memory() + DeferredFrees::words_bytes(nranks);
  Address words_at = 0;
  Status status = world->pin(words, CopyWords::bytes(nranks));
  if (status.ok()) status = check(driver().host_address(&words_at, words, 0), "mapping pinned memory");
  const auto make = [&](CopyLane lane, std::vector<Address> staging) {
    const auto number = static_cast<uint32_t>(lane);
    lanes_[number] = std::make_unique<StagedCopies>(
        &device, lane, context_.rank, StagedMemory{words, words_at, std::move(staging), agreed.copied_piece[number]});
    return lanes_[number]->begin();
  };
  if (const uint64_t piece = agreed.copied_piece[static_cast<uint32_t>(CopyLane::kHost)]; piece != 0) {
    const size_t bytes = (kStagingSlots * piece + PinnedPlan::kAlign - 1) / PinnedPlan::kAlign * PinnedPlan::kAlign;
    COLLC_RETURN_IF_FAILED(PinnedMemory::share_slots(context_, device.number, bytes, &host_slots_, &status));
    std::vector<Address> staging(nranks);
    for (uint32_t rank = 0; rank < nranks && status.ok(); ++rank) staging[rank] = host_slots_->slots() + rank * bytes;
    if (status.ok()) status = make(CopyLane::kHost, std::move(staging));
  }
  if (agreed.copied_piece[static_cast<uint32_t>(CopyLane::kGpu)] == 0) return status;
  std::vector<Address> staging(nranks);
  for (uint32_t rank = 0; rank < nranks && status.ok(); ++rank)
    status = world->staging_of(context_.placement.plan_rank[rank], &device, &staging[rank]);
  return status.ok() ? make(CopyLane::kGpu, std::move(staging)) : status;
}

// Collective: tells the others whether this rank has made its lanes, and returns the problem of the first rank that has not.
Status RankCopies::find_problem(const Status &own, std::string *problem) const {
  CopyProblem mine = {};
  if (!own.ok()) std::snprintf(mine.text, sizeof mine.text, "%s", own.text().c_str());
  std::vector<CopyProblem> all;
  COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &all));
  for (uint32_t rank = 0; rank < context_.nranks && problem->empty(); ++rank)
    if (all[rank].text[0] != '\0') *problem = format("rank %u: %s", rank, all[rank].text);
  return {};
}

Status RankCopies::open(const Device &device, const Agreed &agreed, World *world) {
  if (least_bytes_ == 0) return {};
  std::string problem = agreed.no_copies;
  if (problem.empty()) {
    COLLC_RETURN_IF_FAILED(find_problem(make_lanes(device, agreed, world), &problem));
    if (!problem.empty()) {
      close();
      dispose(std::move(host_slots_));
    }
  }
  const bool in_groups = world->copies_between_all();
  if (context_.rank == 0 && (in_groups || problem.empty()))
    log(LogLevel::kInfo, "copy engines do all_gathers and broadcasts of %u bytes and more%s%s%s", least_bytes_,
        agreed.pinned.empty() ? "" : " through pinned host memory",
        problem.empty() ? "" : " that one group has of all ranks; kernels do others: ", problem.c_str());
  if (context_.rank == 0 && !in_groups && !problem.empty())
    log(LogLevel::kWarn, "COLLC_COPY_ENGINES is not followed: %s", problem.c_str());
  if (!in_groups && !problem.empty()) least_bytes_ = 0;
  return {};
}

std::array<CopyRange, kCopyLanes> RankCopies::cut(const Call &call, uint32_t weights) const {
  const uint64_t bytes = bytes_of(call);
  const uint64_t nvlink = weights >> 8 * kNvlinkPart & 0xff, pcie = weights >> 8 * kPciePart & 0xff;
  uint64_t near = bytes;
  if (pcie != 0) near = bytes / (nvlink + pcie) * nvlink / kRangeAlignment * kRangeAlignment;
  if (lane(CopyLane::kGpu) == nullptr) near = 0;
  return {CopyRange{0, near}, CopyRange{near, bytes - near}};
}

std::string RankCopies::find_late(int64_t now_ms, double seconds) const {
  for (const auto &lane : lanes_) {
    std::string late = lane == nullptr ? "" : lane->find_late(now_ms, seconds);
    if (!late.empty()) return late;
  }
  return "";
}

void RankCopies::release() const {
  for (const auto &lane : lanes_)
    if (lane != nullptr) lane->release();
}

void RankCopies::leave(DeferredFrees *frees) {
  if (host_slots_ != nullptr) frees->drop(std::move(host_slots_));
}

}  // namespace collc::cuda
