#include "cuda/registered_buffers.h"

#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "cuda/loan_desk.h"

namespace collc::cuda {
namespace {

// Longest waits of a thread that withdraws a buffer: for its own calls, then for readers.
constexpr int64_t kCallsMs = 2000, kReadersMs = 100;

void nap_500_us() {
  const timespec half{0, 500000};
  nanosleep(&half, nullptr);
}

void warn_of_slots(uint32_t rank, const Status &why) {
  log(LogLevel::kWarn, "rank %u: no buffers pass between processes where they stand: %s", rank, why.text().c_str());
}

}  // namespace

void RegisteredBuffers::listen(const Device *device, RankMemory *memory) {
  device_ = device;
  if (!settings_.abroad || device->direct.empty()) return;
  const Status status = Loans::listen(context_, device, &memory->loans, &loans_);
  if (status.ok()) return;
  memory->loans = {};
  loans_ = nullptr;
  warn_of_slots(context_.rank, status);
}

void RegisteredBuffers::mark(const World &world, Connectors *connectors) {
  if (device_->direct.empty()) return;
  runs_direct_ = world.goes_by_address();
  const uint32_t plan_rank = context_.plan_rank();
  std::map<uint32_t, uint32_t> numbers;  // of readers in other processes
  for (const uint32_t reader : world.readers_abroad(plan_rank)) numbers.emplace(reader, numbers.size());
  const auto address_kind = [&](uint32_t peer) -> uint32_t {
    if (!world.reads_buffers(plan_rank, peer)) return 0;
    const auto number = numbers.find(peer);
    return kSameAddress + (number == numbers.end() ? 0 : 1 + number->second);
  };
  mark_by_address(world.plan(), plan_rank, address_kind, connectors->fifos.data());
  log_peers(world);
}

void RegisteredBuffers::begin(const World &world, const volatile uint32_t *gives_up) {
  const uint32_t plan_rank = context_.plan_rank();
  const std::set<uint32_t> peers = world.by_address_with(plan_rank);
  if (std::none_of(peers.begin(), peers.end(), [&](uint32_t peer) { return world.lends_abroad(plan_rank, peer); }))
    loans_ = nullptr;
  if (loans_ == nullptr) return;
  std::vector<Loans::Reader> readers;
  for (const uint32_t reader : world.readers_abroad(plan_rank))
    readers.push_back({context_.placement.nccl_rank[reader], world.loans_of(reader)});
  loans_->begin(std::move(readers), gives_up, ring_desk);
  const Status status = attend(loans_);
  if (status.ok()) return;
  // Nobody answers if the thread is missing, so the others also use slots with this rank.
  loans_ = nullptr;
  warn_of_slots(context_.rank, status);
}

uint64_t RegisteredBuffers::lend(const Call &call, uint64_t *words, uint32_t first, uint32_t room) {
  if (!settings_.lends) return 0;
  const LentCall lent = lent_by(call, context_.nranks, device_->context, this);
  const size_t readers = loans_ == nullptr ? 0 : loans_->readers();
  if (readers == 0 || 2 * readers > room) return lent.which;
  std::fill_n(words + first, 2 * readers, kNotThere);
  if (lent.input.number != 0) loans_->find(lent.input, words + first);
  if (lent.output.number != 0) loans_->find(lent.output, words + first + 1);
  return lent.which | uint64_t{first} << kLentBits;
}

void RegisteredBuffers::offer_buffer(const void *memory, uint64_t bytes, double seconds) {
  if (!settings_.lends || !has_readers_abroad()) return;
  const LentBuffer buffer = find_buffer(memory, bytes, device_->context, this);
  if (buffer.number == 0) return;
  std::vector<uint64_t> words(2 * loans_->readers());
  const int64_t start = now_ms();
  for (loans_->find(buffer, words.data());
       !loans_->is_answered(buffer.number) && static_cast<double>(now_ms() - start) < 1e3 * seconds;
       loans_->find(buffer, words.data()))
    nap_500_us();
}

void RegisteredBuffers::register_buffer(const void *memory, uint64_t bytes) {
  if (!settings_.lends || !runs_direct_) return;
  if (!collc::cuda::register_buffer(memory, bytes, device_->context, has_readers_abroad(), this)) {
    log(LogLevel::kInfo,
        "rank %u: a registered buffer of %" PRIu64
        " bytes passes through slots: it is no memory of its GPU of cudaMalloc or "
        "ncclMemAlloc",
        context_.rank, bytes);
    return;
  }
  offer_buffer(memory, bytes, 0);
}

// Memory that a call or a graph still uses stays mapped until the communicator ends. Readers answer soon, unless they are
// stopped.
void RegisteredBuffers::withdraw_buffer(const void *memory) {
  const uint64_t number = collc::cuda::withdraw_buffer(memory, this);
  if (number == 0 || loans_ == nullptr || order_.graphs()->any()) return;
  const Uncaptured uncaptured;  // other threads may capture graphs
  const int64_t start = now_ms();
  const auto within = [&](int64_t limit_ms, const auto &is_so) {
    while (!is_so() && now_ms() - start < limit_ms) nap_500_us();
    return is_so();
  };
  if (!within(kCallsMs, [this] { return !order_.runs(); })) return;
  loans_->forget(number);
  ring_desk();
  within(now_ms() - start + kReadersMs, [this] { return !loans_->awaits_returns(); });
}

void RegisteredBuffers::close(DeferredFrees *frees) {
  withdraw_all(this);
  if (loans_ != nullptr) loans_->close(frees);
}

// "rank 0: buffers of ncclMemAlloc are read where they stand between it and rank(s) 1, 2".
void RegisteredBuffers::log_peers(const World &world) const {
  if (!logs(LogLevel::kInfo)) return;
  std::set<uint32_t> peers;
  for (const uint32_t peer : world.by_address_with(context_.plan_rank())) peers.insert(context_.placement.nccl_rank[peer]);
  std::string text;
  for (const uint32_t peer : peers) text += format("%s %u", text.empty() ? "" : ",", peer);
  if (text.empty())
    log(LogLevel::kInfo, "rank %u: no rank reads its buffers where they stand, nor it theirs", context_.rank);
  else
    log(LogLevel::kInfo, "rank %u: buffers of ncclMemAlloc are read where they stand between it and rank(s)%s%s", context_.rank,
        text.c_str(), settings_.lends ? "" : "; it lends none (COLLC_DIRECT=0)");
}

}  // namespace collc::cuda
