// A listening socket where strangers may knock: whoever has not shown what the house wants to hear first.
//
// Honest callers speak at once, so a connection is read as soon as it is accepted, and most never wait here. The others share
// a bounded number of seats; when those are taken, whoever has sat there longest goes. Who is turned away without an answer
// tries again.
#pragma once
#include <poll.h>

#include <deque>
#include <functional>
#include <vector>

#include "base/descriptor.h"
#include "bootstrap/sockets.h"

namespace collc {

class Door {
 public:
  // Takes over whoever said all of the first words; they are of the size that the door was made for.
  using Greet = std::function<void(Descriptor guest, const unsigned char *words)>;

  // With `users_only`, callers of other users are turned away at once.
  Door(Descriptor listening, size_t words_size, bool users_only);

  void add_to(std::vector<pollfd> *polled) const;
  // `at`: what add_to added, polled; moves it past that.
  void attend(const pollfd **at, const Greet &greet);
  // False if this process has closed its listening socket, not knowing what it is.
  bool intact() const { return listening_.intact(); }
  // Milliseconds until it must be attended to in any case; -1: never.
  int timeout() const;

  // A descriptor is kept for a caller where the process has no other left. False where it is in use: the last caller took it.
  bool has_reserve();

 private:
  struct Stranger {
    Descriptor fd;
    int64_t since = 0;
    Bytes words;
  };
  using Seats = std::deque<Stranger>;  // the oldest in front

  void accept_some(const Greet &greet);
  bool accept_one(const Greet &greet);
  // False once the stranger has gone on, or away.
  bool hear(Stranger &stranger, const Greet &greet);
  bool make_room();

  Descriptor listening_;
  size_t words_size_;
  bool local_;
  bool users_only_;
  size_t most_;  // strangers of each kind
  Descriptor reserve_;
  int64_t closed_until_ = 0;  // no descriptor was left
  Seats ours_, others_;       // of this user, of others and from afar
};

}  // namespace collc
