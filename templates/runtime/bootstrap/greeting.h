// How the ends of a new connection prove to each other that they know a secret, before anything else is read.
//
//   caller    hello      a request, a random nonce, and an HMAC of both
//   listener  challenge  a random nonce, and an HMAC of it and the hello
//   caller    answer     another HMAC of the listener's nonce and the hello
//
// The HMAC of a hello lets the listener close the connection of a stranger at once, and keep no seat for it. A hello that was
// overheard can be sent again, but its sender cannot answer the challenge, which is new for each connection. The caller's nonce
// makes each hello differ from all others. The secret itself never travels.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/proof.h"
#include "base/status.h"

namespace collc {

using Nonce = std::array<unsigned char, 16>;

// All zeros: the listener refuses the hello, and closes the connection.
struct Challenge {
  Nonce nonce;
  Proof proof;
};

// The bytes of a hello that asks with `body` bytes.
constexpr size_t hello_bytes(size_t body) { return body + sizeof(Nonce) + sizeof(Proof); }

// Returns whether the sender of a hello knows the key, or has heard from somebody who does.
bool is_hello(const std::string &key, const Bytes &hello);
// Draws the nonce. Fails if the system has no random bytes.
Status make_challenge(const std::string &key, const Bytes &hello, Challenge *made);
Proof answer_to(const std::string &key, const Bytes &hello, const Challenge &challenge);

// The caller's side, on a connected socket that does not block.
class Greeting {
 public:
  enum class Step {
    kWaits,  // for the challenge
    kProved,  // the listener knows the key, and the answer has been sent
    kRefused,  // the listener does not know this hello
    kFalse,  // somebody else listens there: the challenge is wrong
    kClosed,  // the connection has ended
  };

  // Sends the hello, which asks with the bytes of `body`.
  template <typename Body>
  Step start(int socket, const std::string &key, const Body &body) {
    const auto *const bytes = reinterpret_cast<const unsigned char *>(&body);
    return send_hello(socket, key, Bytes(bytes, bytes + sizeof body));
  }
  // Reads what has come of the challenge; answers it when it is complete, and reads nothing beyond it.
  Step advance(int socket);

 private:
  Step send_hello(int socket, const std::string &key, const Bytes &body);

  std::string key_;
  Bytes hello_, received_;
};

}  // namespace collc
