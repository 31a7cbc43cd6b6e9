// The listener's side of one rendezvous: the ranks of one id while their communicator is being created.
//
// In each round every rank sends a message and receives all of them. When a rank fails, leaves without saying goodbye or keeps
// the others waiting for too long, the session reports that to all other ranks at once, and to later ones when they join.
#pragma once
#include <poll.h>

#include <map>
#include <string>
#include <vector>

#include "bootstrap/connection.h"

namespace collc {

class RendezvousSession {
 public:
  // `seconds` limits first the wait for ranks to join, then each round.
  explicit RendezvousSession(double seconds) : limit_ms_(static_cast<int64_t>(seconds * 1000)) {}

  // Takes over the connection of a rank that has presented the secret.
  void admit(Connection rank, const Hello &hello);
  // Fails the session for all ranks, including those that have not joined yet. Notifies `reporter` last, so that its
  // notification means that all others have been notified.
  void fail_all(ncclResult_t code, const std::string &words, uint32_t reporter = kNoRank);

  void add_to(std::vector<pollfd> *polled) const;
  // `at`: the polled entries that add_to added; advances it past them.
  void handle_events(const pollfd **at);
  // Milliseconds until handle_events must be called even without events; -1: never.
  int timeout() const;
  // True once every rank has left or been notified of the failure, or the wait for late ranks has timed out.
  bool over() const;
  // Milliseconds since a failure of which not all ranks have been notified; -1: there is none.
  int64_t pending_failure_ms() const;

  // Connections on which nothing more will be sent.
  std::vector<Connection> take_closing() { return std::move(closing_); }

 private:
  struct Rank {
    Connection connection;
    bool sent = false;  // its message of this round is complete
    bool done = false;   // it has said goodbye
    Frame frame = {};
    Bytes message;
  };

  bool join(const Hello &hello);
  void close_gracefully(Connection connection);
  static bool receive_from(Rank &rank);
  void evaluate();
  bool round_begun() const;
  void finish_round();
  void check_timeout();
  std::string missing() const;
  std::string places(bool all) const;
  std::string silent() const;

  int64_t limit_ms_;
  uint32_t nranks_ = 0;    // 0: no rank has joined
  int64_t round_ms_ = 0;   // when the first rank joined, then when the last round ended
  uint64_t complete_ = 0;  // rounds
  std::map<uint32_t, Rank> ranks_;  // after a failure: those that have been notified
  std::vector<Connection> closing_;
  // Why the creation failed; ncclSuccess: it has not failed.
  ncclResult_t failure_ = ncclSuccess;
  std::string words_;
  int64_t failed_ms_ = 0;
};

}  // namespace collc
