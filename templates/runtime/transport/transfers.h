// Send and receive between two ranks: a queue of slots in shared memory for every ordered pair of which one is here.
#pragma once
#include <vector>

#include "base/lines.h"

#include "control/segment.h"
#include "plan/call.h"

namespace collc {

// Where the queues lie in the target's shared memory.
class TransferLayout {
 public:
  // All ranks on one machine.
  TransferLayout(uint32_t nranks, uint64_t begin);
  // The queues of the ranks on the machine of a placement's rank; `only_halves`: those with ranks of other machines.
  TransferLayout(const Placement &placement, uint64_t begin, bool only_halves = false);
  uint64_t queue(uint32_t from, uint32_t to) const {
    const uint64_t row = numbers_.empty() ? from : numbers_[from], column = numbers_.empty() ? to : numbers_[to];
    // Ranks here have the first numbers: a row for what each of them sends, then one per other rank for what it sends here.
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
  uint32_t nranks_, here_, left_out_ = 0;  // the first columns of ranks here
  uint64_t begin_;
  uint32_t slot_bytes_;
  uint64_t queue_bytes_;
  std::vector<uint32_t> numbers_;  // of the ranks, those here first; empty if all are
};

// The shared part of a queue; the slots follow it. `signatures` tell what the sender of each slot sends, `bytes` how much.
struct TransferQueue {
  std::atomic<uint64_t> tail;  // chunks written
  uint64_t signatures[TransferLayout::kSlots];
  uint32_t bytes[TransferLayout::kSlots];
  alignas(kLine) std::atomic<uint64_t> head;  // chunks read
  alignas(kLine) char slots[1];
};

// The transfers of one rank. Those of one pair and direction go in the order in which they were posted.
class Transfers {
 public:
  Transfers(Segment &segment, const TransferLayout &layout, uint32_t rank);

  void post(const Call &call, Status *status);
  bool idle() const { return waiting_.empty(); }
  // Moves what can be moved; true if anything did.
  bool advance();
  // A peer sends something else than this rank receives.
  struct Difference {
    uint32_t peer;
    uint64_t what, count;  // what is received
    uint64_t sent, expected;  // signatures
  };
  // The first that advance() has met since it was last asked; null: none.
  const Difference *difference() const { return differs_ ? &difference_ : nullptr; }
  // Ends all of them.
  void fail(const Status &status);

  // For diagnosis: whether one of them waits for a peer, a sentence about the first, and what that is.
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
  std::vector<uint64_t> sent_, received_;  // chunks so far, per peer
  std::vector<bool> taken_;                // a pair and direction that an earlier transfer holds
  bool differs_ = false;
  Difference difference_ = {};
};

}  // namespace collc
