// What a rank lends of its buffers to kernels of other ranks, which read them where they stand, and what it says of that.
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <map>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "cuda/lending.h"
#include "cuda/loan_desk.h"
#include "cuda/rank.h"

namespace collc::cuda {
namespace {

// How long who withdraws a buffer waits for its own calls, and for readers.
constexpr int64_t kCallsMs = 2000, kReadersMs = 100;

void nap() {
  const timespec half{0, 500000};
  nanosleep(&half, nullptr);
}

}  // namespace

// Before the ranks tell each other of their memory. Without its user's wish or a socket everything between processes passes through
// slots.
void CudaRank::listen_for_loans(RankMemory *mine) {
  if (!lending_.abroad || device_->direct.empty()) return;
  const Status status = Loans::listen(context_, device_, &mine->loans, &loans_);
  if (status.ok()) return;
  mine->loans = {};
  loans_ = nullptr;
  log(LogLevel::kWarn, "rank %u: no buffers pass between processes where they stand: %s", context_.rank, status.text().c_str());
}

void CudaRank::mark_by_address(Connectors *connectors) {
  if (device_->direct.empty()) return;
  runs_direct_ = world_->goes_by_address();
  std::map<uint32_t, uint32_t> numbers;  // of readers in other processes
  for (const uint32_t reader : world_->readers_abroad(context_.plan_rank())) numbers.emplace(reader, numbers.size());
  const auto way = [&](uint32_t peer) -> uint32_t {
    if (!world_->reads_buffers(context_.plan_rank(), peer)) return 0;
    const auto found = numbers.find(peer);
    return kSameAddress + (found == numbers.end() ? 0 : 1 + found->second);
  };
  collc::cuda::mark_by_address(world_->plan(), context_.plan_rank(), way, connectors->fifos.data());
  log_lending();
}

// A rank that cannot be attended to answers nobody, and all of it passes through slots.
void CudaRank::begin_lending() {
  const std::set<uint32_t> peers = world_->by_address_with(context_.plan_rank());
  if (std::none_of(peers.begin(), peers.end(),
                   [this](uint32_t peer) { return world_->lends_abroad(context_.plan_rank(), peer); }))
    loans_ = nullptr;
  if (loans_ == nullptr) return;
  std::vector<Loans::Reader> readers;
  for (const uint32_t reader : world_->readers_abroad(context_.plan_rank()))
    readers.push_back({context_.placement.nccl_rank[reader], world_->loans_of(reader)});
  loans_->begin(std::move(readers), memory_.abort_flag(), ring_desk);
  const Status status = attend(loans_);
  if (status.ok()) return;
  loans_ = nullptr;
  log(LogLevel::kWarn, "rank %u: no buffers pass between processes where they stand: %s", context_.rank, status.text().c_str());
}

uint64_t CudaRank::lend(const Call &call, uint64_t *words, uint32_t first, uint32_t room) {
  if (!lending_.lends) return 0;
  const LentCall lent = lent_by(call, world_->nranks(), device_->context, this);
  const size_t readers = loans_ == nullptr ? 0 : loans_->readers();
  if (readers == 0 || 2 * readers > room) return lent.which;
  std::fill_n(words + first, 2 * readers, kNotThere);
  if (lent.input.number != 0) loans_->find(lent.input, words + first);
  if (lent.output.number != 0) loans_->find(lent.output, words + first + 1);
  return lent.which | uint64_t{first} << kLentBits;
}

void CudaRank::offer_buffer(const void *memory, uint64_t bytes, double seconds) {
  if (!lending_.lends || loans_ == nullptr || loans_->readers() == 0) return;
  const LentBuffer buffer = find_buffer(memory, bytes, device_->context, this);
  if (buffer.number == 0) return;
  std::vector<uint64_t> words(2 * loans_->readers());
  const int64_t start = now_ms();
  for (loans_->find(buffer, words.data());
       !loans_->is_answered(buffer.number) && static_cast<double>(now_ms() - start) < 1e3 * seconds;
       loans_->find(buffer, words.data()))
    nap();
}

void CudaRank::register_buffer(const void *memory, uint64_t bytes) {
  if (!lending_.lends || !runs_direct_) return;
  if (!collc::cuda::register_buffer(memory, bytes, device_->context, loans_ != nullptr && loans_->readers() != 0, this)) {
    log(LogLevel::kInfo,
        "rank %u: a registered buffer of %" PRIu64
        " bytes passes through slots: it is no memory of its GPU of cudaMalloc or "
        "ncclMemAlloc",
        context_.rank, bytes);
    return;
  }
  offer_buffer(memory, bytes, 0);
}

// Memory that a call still uses, or a graph, stays mapped until the communicator ends. Readers answer soon, unless they are stopped.
void CudaRank::withdraw_buffer(const void *memory) {
  const uint64_t number = collc::cuda::withdraw_buffer(memory, this);
  if (number == 0 || loans_ == nullptr || launches_.has_graphs()) return;
  const Uncaptured uncaptured;  // other threads may capture graphs
  const int64_t start = now_ms();
  const auto within = [&](int64_t limit_ms, const auto &is_so) {
    while (!is_so() && now_ms() - start < limit_ms) nap();
    return is_so();
  };
  if (!within(kCallsMs, [this] { return !launches_.runs(); })) return;
  loans_->forget(number);
  ring_desk();
  within(now_ms() - start + kReadersMs, [this] { return !loans_->awaits_returns(); });
}

// "rank 0: buffers of ncclMemAlloc are read where they stand between it and rank(s) 1, 2".
void CudaRank::log_lending() const {
  if (!logs(LogLevel::kInfo)) return;
  std::set<uint32_t> peers;
  for (const uint32_t peer : world_->by_address_with(context_.plan_rank())) peers.insert(context_.placement.nccl_rank[peer]);
  std::string text;
  for (const uint32_t peer : peers) text += format("%s %u", text.empty() ? "" : ",", peer);
  if (text.empty())
    log(LogLevel::kInfo, "rank %u: no rank reads its buffers where they stand, nor it theirs", context_.rank);
  else
    log(LogLevel::kInfo, "rank %u: buffers of ncclMemAlloc are read where they stand between it and rank(s)%s%s", context_.rank,
        text.c_str(), lending_.lends ? "" : "; it lends none (COLLC_DIRECT=0)");
}

}  // namespace collc::cuda
