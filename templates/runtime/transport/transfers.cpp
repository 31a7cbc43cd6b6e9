#include "transport/transfers.h"

#include <algorithm>
#include <cstring>

#include "base/element.h"

namespace collc {
namespace {

// Limits the slots of all queues together, for up to 362 ranks; with more ranks each slot is one cache line, its minimum.
// With few ranks, slots have the largest size that is worthwhile. The two lines of counters of each queue are extra: 8 MiB in
// all with 256 ranks.
constexpr uint64_t kMostBytes = 32 << 20;
constexpr uint64_t kMostSlotBytes = 128 << 10;

uint32_t slot_bytes_for(uint64_t queues) {
  const uint64_t fair = kMostBytes / (queues * TransferLayout::kSlots);
  const uint64_t unit = fair >= kPage ? kPage : kLine;
  return static_cast<uint32_t>(std::clamp(fair / unit * unit, uint64_t{kLine}, kMostSlotBytes));
}

}  // namespace

TransferLayout::TransferLayout(uint32_t nranks, uint64_t begin) : nranks_(nranks), here_(nranks), begin_(begin) {
  slot_bytes_ = slot_bytes_for(uint64_t{nranks} * nranks);
  queue_bytes_ = 2 * kLine + uint64_t{kSlots} * slot_bytes_;
}

TransferLayout::TransferLayout(const Placement &placement, uint64_t begin, bool only_halves)
    : TransferLayout(static_cast<uint32_t>(placement.plan_rank.size()), begin) {
  if (placement.machine.empty()) return;
  std::vector<uint32_t> crowd(placement.nmachines());
  for (const uint32_t machine : placement.machine) ++crowd[machine];
  here_ = crowd[placement.local_machine];
  left_out_ = only_halves ? here_ : 0;
  uint32_t next_here = 0, next_elsewhere = here_;
  for (uint32_t r = 0; r < nranks_; ++r) numbers_.push_back(placement.is_here(r) ? next_here++ : next_elsewhere++);
  // All machines use the same slot size, so that they cut data into the same chunks. The machine with most ranks determines
  // it.
  slot_bytes_ = slot_bytes_for(2 * uint64_t{*std::max_element(crowd.begin(), crowd.end())} * nranks_);
  queue_bytes_ = 2 * kLine + uint64_t{kSlots} * slot_bytes_;
}

Transfers::Transfers(Segment &segment, const TransferLayout &layout, uint32_t rank)
    : segment_(segment),
      layout_(layout),
      rank_(rank),
      sent_(segment.nranks()),
      received_(segment.nranks()),
      taken_(2 * size_t{segment.nranks()}) {}

TransferQueue &Transfers::queue(const Transfer &transfer) const {
  const uint64_t at = transfer.sends ? layout_.queue(rank_, transfer.peer) : layout_.queue(transfer.peer, rank_);
  return *reinterpret_cast<TransferQueue *>(segment_.memory() + at);
}

void Transfers::post(const Call &call, Status *status) {
  Transfer transfer = {};
  transfer.peer = call.peer;
  transfer.sends = call.work == Work::kSend;
  transfer.data = transfer.sends ? static_cast<char *>(const_cast<void *>(call.input)) : static_cast<char *>(call.output);
  transfer.bytes = call.count * element_bytes(call.type);
  transfer.signature = call.signature;
  transfer.what = call.packed_call;
  transfer.count = call.count;
  transfer.status = status;
  waiting_.push_back(transfer);
}

bool Transfers::advance() {
  if (waiting_.empty()) return false;
  differs_ = false;
  std::fill(taken_.begin(), taken_.end(), false);
  bool moved = false;
  for (Transfer &transfer : waiting_) {
    const size_t lane = 2 * size_t{transfer.peer} + (transfer.sends ? 1 : 0);
    if (taken_[lane]) continue;
    moved |= advance_one(transfer);
    taken_[lane] = transfer.done != transfer.bytes;
  }
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), [](const Transfer &t) { return t.done == t.bytes; }),
                 waiting_.end());
  return moved;
}

bool Transfers::advance_one(Transfer &transfer) {
  TransferQueue &shared = queue(transfer);
  uint64_t &position = transfer.sends ? sent_[transfer.peer] : received_[transfer.peer];
  bool moved = false;
  while (transfer.done != transfer.bytes) {
    char *slot = shared.slots + position % TransferLayout::kSlots * layout_.slot_bytes();
    const uint64_t bytes = std::min<uint64_t>(transfer.bytes - transfer.done, layout_.slot_bytes());
    uint64_t &signature = shared.signatures[position % TransferLayout::kSlots];
    if (transfer.sends) {
      if (position >= shared.head.load(std::memory_order_seq_cst) + TransferLayout::kSlots) break;
      std::memcpy(slot, transfer.data + transfer.done, bytes);
      signature = transfer.signature;
      shared.bytes[position % TransferLayout::kSlots] = static_cast<uint32_t>(bytes);
      segment_.show(shared.tail, ++position);
    } else {
      if (shared.tail.load(std::memory_order_seq_cst) <= position) break;
      if (signature != transfer.signature) {
        if (!differs_) difference_ = {transfer.peer, transfer.what, transfer.count, signature, transfer.signature};
        differs_ = true;
        break;
      }
      std::memcpy(transfer.data + transfer.done, slot, bytes);
      segment_.show(shared.head, ++position);
    }
    transfer.done += bytes;
    segment_.ring(transfer.peer);
    moved = true;
  }
  return moved;
}

void Transfers::fail(const Status &status) {
  for (Transfer &transfer : waiting_) *transfer.status = status;
  waiting_.clear();
}

bool Transfers::waits_for(uint32_t peer) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Transfer &t) { return t.peer == peer; });
}

std::string Transfers::describe() const {
  const Transfer &first = waiting_.front();
  return format("rank %u waits for rank %u to %s (%llu of %llu bytes done)", rank_, first.peer,
                first.sends ? "receive" : "send", static_cast<unsigned long long>(first.done),
                static_cast<unsigned long long>(first.bytes));
}

}  // namespace collc
