// A listening socket and its connections whose callers have not proved yet that they know the secret (greeting.h). Only one
// thread uses an object: the listener's thread (listener.h), or a creating rank (exchange_fd.h). No function blocks.
//
// Callers that know the secret send their hello at once, so a connection is read as soon as it is accepted. Connections
// without a complete hello wait in queues of bounded length; if a queue is full, its oldest connection is closed. Connections
// with a valid hello are challenged. A hello that waits for the answer to its challenge is not accepted a second time, so
// there is at most one such connection per valid hello, and a stranger who sends copies of a hello takes no place from
// others. A caller whose connection closes without an answer tries again.
#pragma once
#include <poll.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "bootstrap/greeting.h"
#include "bootstrap/sockets.h"

namespace collc {

class Acceptor {
 public:
  // The decisions of the socket's owner. `body` is the request in a hello, of the size given to the constructor.
  struct Owner {
    // Returns the key that the caller must know; empty if the request must be refused.
    std::function<std::string(const unsigned char *body)> key_for;
    // Takes over the connection of a caller that has proved that it knows the key.
    std::function<void(Descriptor client, const unsigned char *body)> admit;
  };

  // If `users_only`, connections from processes of other users are closed at once.
  Acceptor(Descriptor listening, size_t body_size, bool users_only);

  // Appends the descriptors to poll.
  void add_to(std::vector<pollfd> *polled) const;
  // `at` points to the polled entries that add_to() appended; the function advances it past them.
  void handle_events(const pollfd **at, const Owner &owner);
  // Returns false if the application has closed the listening socket by mistake.
  bool intact() const { return listening_.intact(); }
  // Milliseconds until handle_events() must be called even without events; -1: never.
  int timeout() const;

  // One descriptor is kept in reserve, for a client that arrives when the process has no other descriptor left. Returns
  // whether it is there; if it is not, opens it again, if necessary by closing the oldest pending connections.
  bool has_reserve();

 private:
  struct PendingConnection {
    Descriptor fd;  // empty: the connection is closed
    int64_t since = 0;  // when it was accepted or challenged, in ms of now_ms()
    Bytes words;  // bytes received of the hello, then of the answer
    Bytes hello;  // empty until the hello is complete
    std::string key;
    Challenge challenge = {};
  };
  using PendingQueue = std::deque<PendingConnection>;  // ordered by age, the oldest in front

  void accept_some(const Owner &owner);
  bool accept_one(const Owner &owner);
  // Returns true if the connection waits for the rest of its hello or answer. False means that the connection was handed over
  // or moved to challenged_, or is to be closed.
  bool receive_from(PendingConnection &pending, const Owner &owner);
  void take_hello(PendingConnection &pending, const Owner &owner);
  // Closes the oldest connection of the queue, which frees its descriptor. Returns false if all are closed.
  static bool drop_oldest(PendingQueue &queue);

  Descriptor listening_;
  size_t body_size_;
  bool local_;
  bool users_only_;
  size_t limit_;  // length of each queue
  Descriptor reserve_;
  int64_t closed_until_ = 0;  // after the process has run out of descriptors: no connection is accepted before this time (ms)
  PendingQueue same_user_, others_;  // without a hello: local connections of this user; all others
  PendingQueue challenged_;
};

}  // namespace collc
