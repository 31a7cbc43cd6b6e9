// A listening socket and the connections on it that have not completed their handshake yet.
//
// Legitimate clients send their handshake at once, so a connection is read as soon as it is accepted, and most never wait
// here. The others wait in queues of bounded length; a full queue drops its oldest connection. A client whose connection
// closes without an answer tries again.
#pragma once
#include <poll.h>

#include <deque>
#include <functional>
#include <vector>

#include "base/descriptor.h"
#include "bootstrap/sockets.h"

namespace collc {

class Acceptor {
 public:
  // Takes over a connection that has sent its whole handshake: `words`, of the size given to the constructor.
  using HandshakeHandler = std::function<void(Descriptor client, const unsigned char *words)>;

  // With `users_only`, connections of other users are closed at once.
  Acceptor(Descriptor listening, size_t hello_size, bool users_only);

  void add_to(std::vector<pollfd> *polled) const;
  // `at`: what add_to added, polled; moves it past that.
  void handle_events(const pollfd **at, const HandshakeHandler &on_handshake);
  // False if the application has closed the listening socket by mistake.
  bool intact() const { return listening_.intact(); }
  // Milliseconds until it must be attended to in any case; -1: never.
  int timeout() const;

  // One descriptor is kept in reserve for a client that arrives when the process has no other left. False if it is in use.
  bool has_reserve();

 private:
  struct PendingConnection {
    Descriptor fd;
    int64_t since = 0;
    Bytes words;
  };
  using PendingQueue = std::deque<PendingConnection>;  // the oldest in front

  void accept_some(const HandshakeHandler &on_handshake);
  bool accept_one(const HandshakeHandler &on_handshake);
  // False once the connection has been handed over or closed.
  bool receive_from(PendingConnection &pending, const HandshakeHandler &on_handshake);
  bool make_room();

  Descriptor listening_;
  size_t hello_size_;
  bool local_;
  bool users_only_;
  size_t limit_;  // length of each queue
  Descriptor reserve_;
  int64_t closed_until_ = 0;  // after running out of descriptors
  PendingQueue same_user_, others_;       // local connections of this user; all others
};

}  // namespace collc
