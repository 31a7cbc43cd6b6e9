// How ranks find each other when a communicator is created: through the listener of the process that made the id.
//
// The id carries the listener's addresses and a 128-bit secret. Every rank connects and proves that it knows the secret
// (greeting.h). Then the listener serves rounds: each rank sends a message and receives the messages of all ranks. The
// rendezvous ends when all ranks have said goodbye. If a rank leaves without goodbye or keeps the others waiting for too
// long, the listener tells the others which rank it was.
//
// All functions that wait block, but poll `stop` every 50 ms, so that ncclCommAbort() ends them.
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

// One rank's connection to the listener, used by the thread that creates the communicator. Not thread-safe.
class Rendezvous {
 public:
  // `stop` is polled while a function waits; once it returns true, functions fail with ncclInternalError.
  explicit Rendezvous(std::function<bool()> stop) : stop_(std::move(stop)) {}
  Rendezvous(const Rendezvous &) = delete;
  Rendezvous &operator=(const Rendezvous &) = delete;

  // Connects, with retries while the listener is overloaded or does not answer, and waits for its answer. `seconds` limits
  // this and every later wait for other ranks; the listener, which knows which rank is late, gets 5 s more to report it.
  Status join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, double seconds);

  // Does one round: receives all ranks' messages in the order of the ranks. Every rank must call it the same number of times.
  // If `failure` is an error, calls give_up(failure) instead, which fails all other ranks, and returns it.
  Status exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &failure = {});
  template <class T>
  Status exchange(const T &mine, std::vector<T> *all, const Status &failure = {}) {
    const auto round = [&](const Bytes &message, std::vector<Bytes> *messages) {
      return exchange_bytes(message, messages, failure);
    };
    return collc::exchange<T>(round, mine, all);
  }
  // Reports to all other ranks, with this rank's number, why the creation failed, and waits until the listener has notified
  // all ranks that have joined, so that this process may end. Waits for 2 s at most; after that, ranks may lack the report.
  // Does nothing before join() has succeeded, or if the listener has reported a failure or is lost.
  void give_up(const Status &failure);

  // Says goodbye. Call it after the last round: a rank that disconnects without it fails the others.
  void leave();

  // Returns false once the listener has gone or has sent an error, for example because a rank died; no further round can
  // succeed. Does not block.
  bool connected();
  // Returns the error; call it only after connected() has returned false.
  Status verdict();

  double seconds() const { return seconds_; }

 private:
  // kElsewhere: the listener cannot be reached at this address, so the next address is tried.
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
  // Waits for the events. At the time `until` (ms) it succeeds, too, and sets `ready` to false.
  Status wait(short events, int64_t until = INT64_MAX, bool *ready = nullptr);

  std::function<bool()> stop_;
  Id id_ = {};
  Descriptor socket_;
  std::string at_;  // text of the listener's address for messages; empty if it is on this machine
  uint32_t nranks_ = 0;
  double seconds_ = 0;
  int64_t deadline_ = 0;
  int attempts_ = 0;
  bool told_ = true;  // the other ranks need no report from this rank: it has not joined, or they know of the failure
};

// Tells the ranks of an id why this caller does not join; `rank` is its rank, or kNoRank. Blocks for about 5 s at most, plus
// the listener's 5 s.
void decline(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const Status &reason);

// Reads COLLC_BOOTSTRAP_TIMEOUT: the seconds until a creation stops waiting for ranks. Sets 600 if it is unset, and also if
// it fails because the value is invalid.
Status bootstrap_seconds(double *seconds);

// Returns the message that these ranks did not do `what` in time.
std::string too_late(const std::vector<uint32_t> &ranks, const char *what, double seconds);

}  // namespace collc
