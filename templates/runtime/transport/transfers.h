// Send and receive between two ranks: a queue of slots in shared memory for every ordered pair.
#pragma once
#include <vector>

#include "control/segment.h"
#include "plan/call.h"

namespace collc {

// Where the queues lie in the target's shared memory.
class TransferLayout {
 public:
  TransferLayout(uint32_t nranks, uint64_t begin);
  uint64_t queue(uint32_t from, uint32_t to) const { return begin_ + (uint64_t{from} * nranks_ + to) * queue_bytes_; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint64_t end() const { return begin_ + uint64_t{nranks_} * nranks_ * queue_bytes_; }

  static constexpr uint32_t kSlots = 4;

 private:
  uint32_t nranks_;
  uint64_t begin_;
  uint32_t slot_bytes_;
  uint64_t queue_bytes_;
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
  // The shared part of a queue; the slots follow it. `signatures` tell what the sender of each slot sends.
  struct Queue;
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

  Queue &queue(const Transfer &transfer) const;
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
