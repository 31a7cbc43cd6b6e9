// An attempt of all ranks that may fail on some of them: all of them learn of it in one and the same round, and the rendezvous
// goes on. A rank that fails takes part in one more round, in which it says why instead of what the others expect.
#pragma once
#include <vector>

#include "bootstrap/rendezvous.h"

namespace collc {

class JointAttempt {
 public:
  JointAttempt(Rendezvous &rendezvous, uint32_t rank) : rendezvous_(rendezvous), rank_(rank) {}
  JointAttempt(const JointAttempt &) = delete;
  JointAttempt &operator=(const JointAttempt &) = delete;

  // A round of Rendezvous. Fails with the error of the first rank that has one, which all of them are told.
  Status exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &mine = {});
  template <class T>
  Status exchange(const T &mine, std::vector<T> *all, const Status &failure = {}) {
    const auto round = [&](const Bytes &message, std::vector<Bytes> *messages) {
      return exchange_bytes(message, messages, failure);
    };
    return collc::exchange<T>(round, mine, all);
  }
  // What the attempt has come to, of which `mine` is this rank's part; a round unless the others know that it has failed.
  Status conclude(const Status &mine);

  // Whether the ranks have agreed that it failed, so that the rendezvous can be used for something else.
  bool has_failed() const { return !failure_.ok(); }

 private:
  Rendezvous &rendezvous_;
  uint32_t rank_;
  Status failure_;  // the same on all ranks but for who says it
  Status lost_;     // the rendezvous itself has failed
};

}  // namespace collc
