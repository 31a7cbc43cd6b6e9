// How a rank finds the others when a communicator is made: by the listener of the process that made the id.
//
// The id carries its addresses and a 128-bit secret. Every rank connects and says hello; from then on the listener serves
// rounds: each rank sends a message, each receives all of them. It ends when all have said goodbye. A rank that goes without
// it, or lets the others wait for too long, is named to them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "bootstrap/sockets.h"
#include "base/status.h"
#include "bootstrap/exchange.h"
#include "bootstrap/unique_id.h"

namespace collc {

// One rank's connection to the listener. Not thread-safe.
class Rendezvous {
 public:
  // `stop` is polled while waiting; when it turns true, calls end with ncclInternalError.
  explicit Rendezvous(std::function<bool()> stop) : stop_(std::move(stop)) {}
  Rendezvous(const Rendezvous &) = delete;
  Rendezvous &operator=(const Rendezvous &) = delete;

  // Connects, again and again where strangers are in the way, until the listener has answered. `seconds` bound this and
  // every wait for other ranks.
  Status join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, double seconds);

  // One round: all ranks' messages in the order of the ranks. Every rank must call it the same number of times. A rank that
  // sets `failure` takes all others with it, see give_up.
  Status exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &failure = {});
  template <class T>
  Status exchange(const T &mine, std::vector<T> *all, const Status &failure = {}) {
    const auto round = [&](const Bytes &message, std::vector<Bytes> *messages) {
      return exchange_bytes(message, messages, failure);
    };
    return collc::exchange<T>(round, mine, all);
  }
  // A round without a message: when it returns, all ranks have come to it.
  Status meet(const Status &failure) {
    std::vector<Bytes> none;
    return exchange_bytes({}, &none, failure);
  }

  // Tells all others, with this rank's number, why there will be no communicator; when it returns, those who have joined know,
  // whatever becomes of this process and of the listener. Nothing happens if the listener has told us.
  void give_up(const Status &failure);

  // To be called between rounds: the last one is over. Whoever goes without it fails the others.
  void leave();

  // False once the listener has gone or has an error for us, as when any rank died: no round will succeed.
  bool connected();
  // Then: what happened.
  Status verdict();

  double seconds() const { return seconds_; }

 private:
  // kElsewhere: this address leads nowhere.
  enum class Answer { kLetIn, kAgain, kElsewhere, kFailed };

  Answer knock(const Address &address, const Hello &hello, Status *status);
  Answer reach(const Address &address, Status *status);
  Status send_all(const void *data, size_t size);
  Status receive(Bytes *body);
  Status receive_body(const Frame &frame, Bytes *body);
  Status receive_all(void *data, size_t size);
  void start_waiting();
  Status look_at_the_clock();
  Status wait_a_moment();
  // Success also when it is `until`: then not `ready`.
  Status wait(short events, int64_t until = INT64_MAX, bool *ready = nullptr);

  std::function<bool()> stop_;
  Id id_ = {};
  Descriptor socket_;
  uint32_t nranks_ = 0;
  double seconds_ = 0;
  int64_t deadline_ = 0;
  int attempts_ = 0;
  bool told_ = true;  // the others need no word of ours: none has joined, or they know
};

// Tells the ranks of an id why this caller, rank `rank` of them or kNoRank, does not join them. Waits for seconds at most.
void decline(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const Status &reason);

// Seconds until a creation that waits for ranks gives up: COLLC_BOOTSTRAP_TIMEOUT; 600 by default, and where it is wrong.
Status bootstrap_seconds(double *seconds);

// "1, 2, 5"; of many, the first and how many more.
std::string list_ranks(const std::vector<uint32_t> &ranks);

// A sentence about ranks that did not do `what` in time.
std::string too_late(const std::vector<uint32_t> &ranks, const char *what, double seconds);

}  // namespace collc
