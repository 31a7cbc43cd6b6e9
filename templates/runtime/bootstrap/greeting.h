// How the two ends of a new connection prove to each other that they know a secret, before either parses anything else.
//
//   caller    hello      a request, a random nonce, and an HMAC of both
//   listener  challenge  a random nonce, and an HMAC of it and the hello
//   caller    answer     another HMAC of the listener's nonce and the hello
//
// The HMAC of a hello lets the listener close the connection of a stranger at once, without keeping state for it. A stranger
// can send a recorded hello again, but cannot answer the challenge, which is new for each connection. The caller's nonce
// makes each hello unique. The secret itself is never sent. No function blocks.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/proof.h"
#include "base/status.h"

namespace collc {

using Nonce = std::array<unsigned char, 16>;

// All zeros mean that the listener refuses the hello; it then closes the connection.
struct Challenge {
  Nonce nonce;
  Proof proof;
};

// Returns the size of a hello whose request has `body` bytes.
constexpr size_t hello_bytes(size_t body) { return body + sizeof(Nonce) + sizeof(Proof); }

// Returns whether the hello was made with the key; its sender may also have recorded it. `hello` must be complete.
bool is_hello(const std::string &key, const Bytes &hello);
// Draws the listener's nonce. Fails if the system has no random bytes.
Status make_challenge(const std::string &key, const Bytes &hello, Challenge *made);
Proof answer_to(const std::string &key, const Bytes &hello, const Challenge &challenge);

// The caller's side, on a connected non-blocking socket.
class Greeting {
 public:
  enum class Step {
    kWaits,  // the challenge is not complete
    kProved,  // the listener knows the key, and the answer has been sent
    kRefused,  // the listener refuses this hello
    kFalse,  // the challenge has a wrong HMAC: another process listens there
    kClosed,  // the connection has ended
  };

  // Sends a hello; `body` is its request.
  template <typename Body>
  Step start(int socket, const std::string &key, const Body &body) {
    const auto *const bytes = reinterpret_cast<const unsigned char *>(&body);
    return send_hello(socket, key, Bytes(bytes, bytes + sizeof body));
  }
  // Reads available bytes of the challenge, and nothing beyond it. Answers the challenge when it is complete.
  Step advance(int socket);

 private:
  Step send_hello(int socket, const std::string &key, const Bytes &body);

  std::string key_;
  Bytes hello_, received_;
};

}  // namespace collc
