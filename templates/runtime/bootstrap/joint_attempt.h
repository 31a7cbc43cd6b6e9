// A sequence of rounds that may fail on some ranks, without ending the rendezvous. All ranks learn of a failure in the same
// round and can then use the rendezvous for something else. A rank that fails takes part in one more round and sends its
// error in it instead of the expected message. Not thread-safe; exchanges block like those on a Rendezvous.
#pragma once
#include <vector>

#include "bootstrap/rendezvous.h"

namespace collc {

class JointAttempt {
 public:
  JointAttempt(Rendezvous &rendezvous, uint32_t rank) : rendezvous_(rendezvous), rank_(rank) {}
  JointAttempt(const JointAttempt &) = delete;
  JointAttempt &operator=(const JointAttempt &) = delete;

  // Does one round of the rendezvous. Fails on all ranks with the error of the first rank that has one; `mine` is the error
  // of this rank.
  Status exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &mine = {});
  template <class T>
  Status exchange(const T &mine, std::vector<T> *all, const Status &failure = {}) {
    const auto round = [&](const Bytes &message, std::vector<Bytes> *messages) {
      return exchange_bytes(message, messages, failure);
    };
    return collc::exchange<T>(round, mine, all);
  }
  // Ends the attempt. Returns the error of the first rank that has one; `mine` is the outcome of this rank. Takes one more
  // round, unless the ranks already know that the attempt has failed.
  Status conclude(const Status &mine);

  // Returns whether the ranks have agreed that the attempt has failed, so that the rendezvous can be used for something else.
  bool has_failed() const { return !failure_.ok(); }

 private:
  Rendezvous &rendezvous_;
  uint32_t rank_;
  Status failure_;  // the same on all ranks, except that the rank that failed has its message without "rank N: "
  Status lost_;     // the rendezvous itself has failed
};

}  // namespace collc
