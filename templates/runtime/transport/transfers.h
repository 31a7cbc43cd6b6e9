// Send and receive between two ranks: a queue of slots in shared memory for every ordered pair of ranks with at least one
// rank on this machine. No function blocks.
#pragma once
#include <vector>

#include "base/lines.h"

#include "control/segment.h"
#include "plan/call.h"

namespace collc {

// The offsets of the queues in the target's shared memory.
class TransferLayout {
 public:
  // For communicators with all ranks on one machine.
  TransferLayout(uint32_t nranks, uint64_t begin);
  // The queues of the ranks on the local machine of a placement; if `only_halves`, only queues whose other rank is on another
  // machine.
  TransferLayout(const Placement &placement, uint64_t begin, bool only_halves = false);
  uint64_t queue(uint32_t from, uint32_t to) const {
    const uint64_t row = numbers_.empty() ? from : numbers_[from], column = numbers_.empty() ? to : numbers_[to];
    // Local ranks have the lowest numbers. There is a row for the sends of each local rank, then a row per remote rank for
    // its sends to local ranks.
    const uint64_t at = row < here_ ? row * (nranks_ - left_out_) + column - left_out_
                                    : here_ * uint64_t{nranks_ - left_out_} + (row - here_) * here_ + column;
    return begin_ + at * queue_bytes_;
  }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint64_t end() const {
    return begin_ + (uint64_t{here_} * (nranks_ - left_out_) + uint64_t{nranks_ - here_} * here_) * queue_bytes_;
  }

  static constexpr uint32_t kSlots = 4;

 private:
  uint32_t nranks_, here_, left_out_ = 0;  // the number of first columns that are left out (the local ranks)
  uint64_t begin_;
  uint32_t slot_bytes_;
  uint64_t queue_bytes_;
  std::vector<uint32_t> numbers_;  // number of each rank, local ranks first; empty if all ranks are local
};

// The shared part of a queue; the slots follow it. The sender stores the slot, its signature (of the call) and its bytes, and
// then publishes the tail.
struct TransferQueue {
  std::atomic<uint64_t> tail;  // chunks written
  uint64_t signatures[TransferLayout::kSlots];
  uint32_t bytes[TransferLayout::kSlots];
  alignas(kLine) std::atomic<uint64_t> head;  // chunks read
  alignas(kLine) char slots[1];
};

// The transfers of one rank. Transfers of one pair and direction run in the order of their post() calls. Only the thread that
// runs the rank uses the object.
class Transfers {
 public:
  Transfers(Segment &segment, const TransferLayout &layout, uint32_t rank);

  // Queues a send or receive. `status` receives the error if it fails and must live until it has ended.
  void post(const Call &call, Status *status);
  bool idle() const { return waiting_.empty(); }
  // Moves all data that can be moved now; returns whether there was any.
  bool advance();
  // A peer sends something else than this rank receives.
  struct Difference {
    uint32_t peer;
    uint64_t what, count;  // of the receive: its packed call and count
    uint64_t sent, expected;  // signatures
  };
  // The first difference that the last advance() has met; null if there was none.
  const Difference *difference() const { return differs_ ? &difference_ : nullptr; }
  // Fails all transfers.
  void fail(const Status &status);

  // For diagnosis: whether a transfer waits for a peer; a text about the first transfer; its packed call.
  bool waits_for(uint32_t peer) const;
  std::string describe() const;
  uint64_t what() const { return waiting_.front().what; }
  uint64_t count() const { return waiting_.front().count; }

 private:
  struct Transfer {
    uint32_t peer;
    bool sends;
    char *data;
    uint64_t bytes;
    uint64_t done;
    uint64_t signature;
    uint64_t what, count;
    Status *status;
  };

  TransferQueue &queue(const Transfer &transfer) const;
  bool advance_one(Transfer &transfer);

  Segment &segment_;
  TransferLayout layout_;
  uint32_t rank_;
  std::vector<Transfer> waiting_;
  std::vector<uint64_t> sent_, received_;  // chunks so far, by peer
  std::vector<bool> taken_;                // by pair and direction: an earlier transfer is not done, so later ones must wait
  bool differs_ = false;
  Difference difference_ = {};
};

}  // namespace collc
