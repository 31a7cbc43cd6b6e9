// How the ranks of a communicator find each other: TCP, once, at creation.
//
// ncclGetUniqueId starts a listener in the calling process; the id carries its address and a 128-bit secret. Every rank
// connects and says hello; from then on the listener serves rounds: each rank sends a message, each receives all of them.
// It ends when all have said goodbye. A rank that goes without it, or lets the others wait for too long, is named to them.
// Whoever does not know the secret (port scanners, other jobs) is dropped without an answer and disturbs nobody.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "status.h"

namespace collc {

using Bytes = std::vector<unsigned char>;

// Makes an id and starts its listener, which ends when all ranks have left.
Status make_unique_id(ncclUniqueId *id);

// True if collc made this id.
bool is_our_id(const ncclUniqueId &id);

// The secret as 32 hex digits, which only the ranks of this communicator know.
std::string secret_of(const ncclUniqueId &id);

// One rank's connection to the listener. Not thread-safe.
class Rendezvous {
 public:
  // `stop` is polled while waiting; when it turns true, calls end with ncclInternalError.
  explicit Rendezvous(std::function<bool()> stop) : stop_(std::move(stop)) {}
  ~Rendezvous();
  Rendezvous(const Rendezvous &) = delete;
  Rendezvous &operator=(const Rendezvous &) = delete;

  // `seconds` bound every wait for other ranks.
  Status join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, double seconds);

  // All ranks' messages in the order of the ranks. Every rank must call it the same number of times. A rank that sets
  // `failure` takes all others with it: they get its words, with its number before them.
  Status exchange(const Bytes &message, std::vector<Bytes> *all, const Status &failure = {});

  // To be called between rounds: the last one is over. Whoever goes without it fails the others.
  void leave();

  // False once the listener has gone or has an error for us, as when any rank died: no round will succeed.
  bool connected();
  // Then: what happened.
  Status verdict();

  double seconds() const { return seconds_; }

 private:
  Status send_all(const void *data, size_t size);
  Status receive(Bytes *body);
  Status receive_all(void *data, size_t size);
  void start_waiting();
  Status wait(short events);

  std::function<bool()> stop_;
  int socket_ = -1;
  uint32_t nranks_ = 0;
  double seconds_ = 0;
  int64_t deadline_ = 0;
};

// Seconds until a creation that waits for ranks gives up: COLLC_BOOTSTRAP_TIMEOUT; 600 by default, and where it is wrong.
Status bootstrap_seconds(double *seconds);

// Milliseconds of a clock that only goes forward.
int64_t now_ms();

// "1, 2, 5"; of many, the first and how many more.
std::string list_ranks(const std::vector<uint32_t> &ranks);

// A sentence about ranks that did not do `what` in time.
std::string too_late(const std::vector<uint32_t> &ranks, const char *what, double seconds);

// Fills `data` with random bytes of the kernel.
Status random_bytes(void *data, size_t size);

}  // namespace collc
