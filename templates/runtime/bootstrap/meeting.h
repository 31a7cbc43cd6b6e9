// The ranks of one id while their communicator is made, as their listener sees them.
//
// Each round, every rank sends a message and receives all of them. A rank that fails says why, and all others are told at
// once, also those that come later; so are they of one that goes without goodbye, or lets the others wait for too long.
#pragma once
#include <poll.h>

#include <map>
#include <string>
#include <vector>

#include "bootstrap/connection.h"

namespace collc {

class Meeting {
 public:
  // `seconds` bound the wait for ranks that have not joined, then that for each round.
  explicit Meeting(double seconds) : limit_ms_(static_cast<int64_t>(seconds * 1000)) {}

  // Takes a rank that has shown the secret.
  void welcome(Connection rank, const Hello &hello);
  // Ends it for all ranks, those included that are yet to come. The one that says so is told last: then all have been.
  void fail_all(ncclResult_t code, const std::string &words, uint32_t teller = kNoRank);

  void add_to(std::vector<pollfd> *polled) const;
  // `at`: what add_to added, polled; moves it past that.
  void attend(const pollfd **at);
  // Milliseconds until it must be attended to in any case; -1: never.
  int timeout() const;
  // All ranks have left, or have been told why there will be no communicator; or nobody came to hear it for long.
  bool over() const;
  // It failed so many milliseconds ago, and not all ranks know; -1: no.
  int64_t untold_for() const;

  // Connections that were told their last word.
  std::vector<Connection> take_dismissed() { return std::move(dismissed_); }

 private:
  struct Rank {
    Connection connection;
    bool spoke = false;  // its message of this round is complete
    bool done = false;   // it said goodbye
    Frame frame = {};
    Bytes message;
  };

  bool join(const Hello &hello);
  void dismiss(Connection connection);
  static bool hear(Rank &rank);
  void judge();
  bool round_begun() const;
  void finish_round();
  void look_at_the_clock();
  std::string missing() const;
  std::string silent() const;

  int64_t limit_ms_;
  uint32_t nranks_ = 0;    // 0: nobody has joined
  int64_t round_ms_ = 0;   // when the first rank joined, then when the last round ended
  uint64_t complete_ = 0;  // rounds
  std::map<uint32_t, Rank> ranks_;  // of a failed meeting: those that have been told
  std::vector<Connection> dismissed_;
  // Why there will be no communicator; ncclSuccess: there may be one yet.
  ncclResult_t failure_ = ncclSuccess;
  std::string words_;
  int64_t failed_ms_ = 0;
};

}  // namespace collc
