// A listening socket, and the connections on it whose callers have not proved themselves yet (greeting.h).
//
// Callers that know the secret send their hello at once, so a connection is read as soon as it is accepted. Connections without a
// complete hello wait in queues of bounded length; a full queue drops its oldest connection. Connections with a right hello are
// challenged. There is one such connection for each hello that was ever made, since a hello that is challenged is not taken again,
// so copies of a hello take no seats from others. A caller whose connection closes without an answer tries again.
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
  // The decisions of the socket's owner. `body`: the request in a hello, of the size given to the constructor.
  struct Owner {
    // Returns the key that the caller must know; empty: nobody may ask for this.
    std::function<std::string(const unsigned char *body)> key_for;
    // Takes over the connection of a caller that has proved itself.
    std::function<void(Descriptor client, const unsigned char *body)> admit;
  };

  // With `users_only`, connections of other users are closed at once.
  Acceptor(Descriptor listening, size_t body_size, bool users_only);

  void add_to(std::vector<pollfd> *polled) const;
  // `at`: what add_to added, polled; moves it past that.
  void handle_events(const pollfd **at, const Owner &owner);
  // False if the application has closed the listening socket by mistake.
  bool intact() const { return listening_.intact(); }
  // Milliseconds until it must be attended to in any case; -1: never.
  int timeout() const;

  // One descriptor is kept in reserve for a client that arrives when the process has no other left. False if it is in use.
  bool has_reserve();

 private:
  struct PendingConnection {
    Descriptor fd;  // none: it is over
    int64_t since = 0;
    Bytes words;  // of the hello, then of the answer
    Bytes hello;  // complete; empty: it has not come
    std::string key;
    Challenge challenge = {};
  };
  using PendingQueue = std::deque<PendingConnection>;  // the oldest in front

  void accept_some(const Owner &owner);
  bool accept_one(const Owner &owner);
  // False once the connection has been handed over, is among the challenged ones, or is to be closed.
  bool receive_from(PendingConnection &pending, const Owner &owner);
  void take_hello(PendingConnection &pending, const Owner &owner);
  // Ends a connection, which frees its descriptor; false if none is left.
  static bool drop_oldest(PendingQueue &queue);

  Descriptor listening_;
  size_t body_size_;
  bool local_;
  bool users_only_;
  size_t limit_;  // length of each queue
  Descriptor reserve_;
  int64_t closed_until_ = 0;  // after running out of descriptors
  PendingQueue same_user_, others_;  // without a hello: local connections of this user; all others
  PendingQueue challenged_;
};

}  // namespace collc
