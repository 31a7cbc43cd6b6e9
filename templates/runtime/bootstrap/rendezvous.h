// How ranks find each other when a communicator is created: through the listener of the process that made the id.
//
// The id carries the listener's addresses and a 128-bit secret. Every rank connects and says hello; then the listener serves
// rounds in which each rank sends a message and receives all of them. The rendezvous ends when all ranks have said goodbye. If
// a rank leaves without goodbye or keeps the others waiting for too long, the listener tells them which one it was.
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

  // Connects, with retries while the listener is overloaded, and waits for its answer. `seconds` limits this and every later
  // wait for other ranks.
  Status join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, double seconds);

  // One round: receives all ranks' messages in rank order. Every rank must call it the same number of times. A `failure`
  // fails all other ranks too, see give_up.
  Status exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &failure = {});
  template <class T>
  Status exchange(const T &mine, std::vector<T> *all, const Status &failure = {}) {
    const auto round = [&](const Bytes &message, std::vector<Bytes> *messages) {
      return exchange_bytes(message, messages, failure);
    };
    return collc::exchange<T>(round, mine, all);
  }
  // Reports to all others, with this rank's number, why the creation failed. On return all ranks that had joined know,
  // whatever happens to this process and the listener then. Does nothing if the listener has reported a failure to us.
  void give_up(const Status &failure);

  // Call after the last round. A rank that disconnects without calling it fails the others.
  void leave();

  // False once the listener is gone or has sent an error, for example because a rank died: no round will succeed.
  bool connected();
  // The error, once connected() is false.
  Status verdict();

  double seconds() const { return seconds_; }

 private:
  // kElsewhere: the listener cannot be reached at this address.
  enum class Answer { kAdmitted, kAgain, kElsewhere, kFailed };

  Answer handshake(const Address &address, const Hello &hello, Status *status);
  Answer reach(const Address &address, Status *status);
  Answer greet(const Hello &hello, Status *status);
  Status send_all(const void *data, size_t size);
  Status receive(Bytes *body);
  Status receive_body(const Frame &frame, Bytes *body);
  Status receive_all(void *data, size_t size);
  void start_waiting();
  Status check_timeout();
  Status back_off();
  // Also succeeds at the time `until`, with `ready` false.
  Status wait(short events, int64_t until = INT64_MAX, bool *ready = nullptr);

  std::function<bool()> stop_;
  Id id_ = {};
  Descriptor socket_;
  std::string at_;  // where the listener is, for people; empty on this machine
  uint32_t nranks_ = 0;
  double seconds_ = 0;
  int64_t deadline_ = 0;
  int attempts_ = 0;
  bool told_ = true;  // the others need no report from us: we have not joined, or they know
};

// Tells the ranks of an id why this caller, their rank `rank` or kNoRank, does not join. Waits for a few seconds at most.
void decline(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const Status &reason);

// Seconds until a creation stops waiting for ranks: COLLC_BOOTSTRAP_TIMEOUT; 600 by default and if the value is invalid.
Status bootstrap_seconds(double *seconds);

// The message for ranks that did not do `what` in time.
std::string too_late(const std::vector<uint32_t> &ranks, const char *what, double seconds);

}  // namespace collc
