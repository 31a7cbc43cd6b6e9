// Messages among ranks of a communicator through its shared memory, for communicators that are made of its ranks: splits,
// shrinks, grows.
//
// Owner: Communicator (the parent). Threads: the one whose part has the turn (turns.h). exchange_among() blocks until all
// members have posted and read, one of them fails, or the time for creation is over.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "bootstrap/exchange.h"
#include "control/control.h"

namespace collc {

class PartMail {
 public:
  // `aborted`: true once the communicator is being aborted by this process.
  explicit PartMail(const std::atomic<bool> &aborted) : aborted_(aborted) {}
  // `control` must stay until the last message. `seconds`: limit of the creation of a part.
  void open(Control *control, uint32_t rank, double seconds) {
    control_ = control;
    rank_ = rank;
    seconds_ = seconds;
  }
  double seconds() const { return seconds_; }

  // Sends a message to `members` (ranks, this one included) and receives theirs, in the order of `members`. Fails if one of
  // them has posted a failure instead, or `part_aborted` becomes true. Returns when all members have read all messages: until
  // then nobody posts more messages than are kept.
  template <class T>
  Status exchange_among(const std::vector<uint32_t> &members, const std::atomic<bool> &part_aborted, const T &mine,
                        std::vector<T> *answers) {
    static_assert(sizeof(T) + sizeof(Head) <= kMostMail, "it fits into a message");
    const auto round = [&](const Bytes &message, std::vector<Bytes> *all) {
      COLLC_RETURN_IF_FAILED(exchange_bytes(members, part_aborted, message, all));
      for (Bytes &one : *all) one.resize(sizeof(T));
      return Status();
    };
    return exchange<T>(round, mine, answers);
  }
  // Tells `members`, which may be waiting for this rank, why it does not take part.
  void decline(const Status &reason, const std::vector<uint32_t> &members);

 private:
  // Names the question that a message answers. Ranks that a shrink leaves out know nothing of its messages, so rounds are
  // counted for each set of ranks that corresponds.
  struct Head {
    uint64_t kind, members, round;  // a hash of the ranks; the messages among them so far
  };

  Head post(uint64_t kind, const std::vector<uint32_t> &members, const Bytes &message);
  Status hear(uint32_t member, const Head &head, Bytes *answer, uint64_t *answered) const;
  Status exchange_bytes(const std::vector<uint32_t> &members, const std::atomic<bool> &part_aborted, const Bytes &message,
                        std::vector<Bytes> *answers);
  Status wait_for_readers(const std::vector<uint32_t> &members, const std::vector<uint64_t> &answered, int64_t start) const;
  Status check_time(int64_t start, const std::vector<uint32_t> &late) const;

  const std::atomic<bool> &aborted_;
  Control *control_ = nullptr;
  uint32_t rank_ = 0;
  double seconds_ = 0;
  std::map<uint64_t, uint64_t> rounds_;  // by Head::members
};

}  // namespace collc
