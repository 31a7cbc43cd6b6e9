// The listener's side of one rendezvous: the ranks of one id while their communicator is created. Only the listener's thread
// uses it, under the listener's lock. No function blocks.
//
// In each round every rank sends a message and receives the messages of all ranks. If a rank fails, leaves without goodbye or
// keeps the others waiting for too long, the session reports this to all other ranks at once, and to later ranks when they
// join.
#pragma once
#include <poll.h>

#include <map>
#include <string>
#include <vector>

#include "bootstrap/connection.h"

namespace collc {

class RendezvousSession {
 public:
  // `seconds` limits the wait until all ranks have joined, and then each round.
  explicit RendezvousSession(double seconds) : limit_ms_(static_cast<int64_t>(seconds * 1000)) {}

  // Takes over the connection of a rank that has proved that it knows the secret.
  void admit(Connection rank, const Hello &hello);
  // Fails the session for all ranks, also for those that have not joined yet. Notifies `reporter` last, so that its
  // notification means that all others have been notified.
  void fail_all(ncclResult_t code, const std::string &words, uint32_t reporter = kNoRank);

  // Appends the descriptors to poll.
  void add_to(std::vector<pollfd> *polled) const;
  // `at` points to the polled entries that add_to() appended; the function advances it past them.
  void handle_events(const pollfd **at);
  // Milliseconds until handle_events() must be called even without events; -1: never.
  int timeout() const;
  // Returns true once every rank has left or been notified of the failure, or the wait for late ranks has timed out.
  bool over() const;
  // Returns the milliseconds since a failure that some ranks have not heard of yet; -1 if there is none.
  int64_t pending_failure_ms() const;

  // Returns the connections on which the session sends nothing more, and forgets them.
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
  int64_t round_ms_ = 0;   // when the first rank joined, later when the last round ended (ms)
  uint64_t complete_ = 0;  // completed rounds
  std::map<uint32_t, Rank> ranks_;  // after a failure: the ranks that have been notified
  std::vector<Connection> closing_;
  // Why the creation failed; ncclSuccess if it has not failed.
  ncclResult_t failure_ = ncclSuccess;
  std::string words_;
  int64_t failed_ms_ = 0;
};

}  // namespace collc
