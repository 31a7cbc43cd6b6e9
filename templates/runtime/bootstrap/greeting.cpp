#include "bootstrap/greeting.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/random.h"
#include "bootstrap/unique_id.h"

namespace collc {
namespace {

Bytes join(const char *purpose, const unsigned char *data, size_t size, const Bytes &rest = {}) {
  Bytes message(purpose, purpose + std::strlen(purpose));
  message.insert(message.end(), data, data + size);
  message.insert(message.end(), rest.begin(), rest.end());
  return message;
}

Proof proof_of_challenge(const std::string &key, const Bytes &hello, const Nonce &nonce) {
  return prove(key, join("collc asks", nonce.data(), nonce.size(), hello));
}

bool send_whole(int socket, const void *data, size_t size) {
  return send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

}  // namespace

bool is_hello(const std::string &key, const Bytes &hello) {
  const size_t said = hello.size() - sizeof(Proof);
  const Proof expected = prove(key, join("collc calls", hello.data(), said));
  return equal_secrets(expected.data(), hello.data() + said, expected.size());
}

Status make_challenge(const std::string &key, const Bytes &hello, Challenge *made) {
  COLLC_RETURN_IF_FAILED(random_bytes(made->nonce.data(), made->nonce.size()));
  made->proof = proof_of_challenge(key, hello, made->nonce);
  return {};
}

Proof answer_to(const std::string &key, const Bytes &hello, const Challenge &challenge) {
  return prove(key, join("collc answers", challenge.nonce.data(), challenge.nonce.size(), hello));
}

Greeting::Step Greeting::send_hello(int socket, const std::string &key, const Bytes &body) {
  key_ = key;
  received_.clear();
  Nonce nonce;
  if (!random_bytes(nonce.data(), nonce.size()).ok()) return Step::kClosed;
  hello_ = body;
  hello_.insert(hello_.end(), nonce.begin(), nonce.end());
  const Proof proof = prove(key_, join("collc calls", hello_.data(), hello_.size()));
  hello_.insert(hello_.end(), proof.begin(), proof.end());
  return send_whole(socket, hello_.data(), hello_.size()) ? Step::kWaits : Step::kClosed;
}

Greeting::Step Greeting::advance(int socket) {
  Challenge challenge;
  unsigned char data[sizeof challenge];
  while (received_.size() < sizeof challenge) {
    const ssize_t n = recv(socket, data, sizeof data - received_.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Step::kWaits;
    if (n <= 0) return Step::kClosed;
    received_.insert(received_.end(), data, data + n);
  }
  std::memcpy(&challenge, received_.data(), sizeof challenge);
  if (std::all_of(received_.begin(), received_.end(), [](unsigned char byte) { return byte == 0; })) return Step::kRefused;
  const Proof expected = proof_of_challenge(key_, hello_, challenge.nonce);
  if (!equal_secrets(expected.data(), challenge.proof.data(), expected.size())) return Step::kFalse;
  const Proof answer = answer_to(key_, hello_, challenge);
  return send_whole(socket, answer.data(), answer.size()) ? Step::kProved : Step::kClosed;
}

}  // namespace collc
