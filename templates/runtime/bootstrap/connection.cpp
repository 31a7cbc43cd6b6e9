#include "bootstrap/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bootstrap/sockets.h"

namespace collc {

void Connection::close() {
  fd_.reset();
  waiting_.clear();
  received.clear();
}

std::string Connection::from() const {
  Address peer = {};
  peer.size = sizeof peer.storage;
  if (!fd_ || getpeername(fd_.get(), reinterpret_cast<sockaddr *>(&peer.storage), &peer.size) != 0) return "";
  const std::string text = peer.storage.ss_family == AF_UNIX ? "" : describe(peer);
  return text.substr(0, text.find(' '));
}

pollfd Connection::polled() const { return {fd_.get(), static_cast<short>(sending() ? POLLIN | POLLOUT : POLLIN), 0}; }

bool Connection::read(size_t most) {
  unsigned char data[4096];
  while (received.size() < most) {
    const ssize_t n = recv(fd_.get(), data, std::min(sizeof data, most - received.size()), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    received.insert(received.end(), data, data + n);
    if (static_cast<size_t>(n) < sizeof data) return true;  // poll() reports more data
  }
  return true;
}

void Connection::send(const Frame &frame, std::shared_ptr<const Bytes> body) {
  if (!open()) return;
  auto head = std::make_shared<Bytes>(sizeof frame);
  std::memcpy(head->data(), &frame, sizeof frame);
  waiting_.push_back({std::move(head), 0});
  if (body != nullptr && !body->empty()) waiting_.push_back({std::move(body), 0});
  flush();
}

void Connection::send_words(uint32_t result, const std::string &words) {
  send({static_cast<uint32_t>(words.size()), result}, std::make_shared<Bytes>(words.begin(), words.end()));
}

void Connection::flush() {
  while (!waiting_.empty()) {
    Part &part = waiting_.front();
    const ssize_t n = ::send(fd_.get(), part.bytes->data() + part.sent, part.bytes->size() - part.sent,
                             MSG_NOSIGNAL | (waiting_.size() > 1 ? MSG_MORE : 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) {
      waiting_.clear();  // read() then reports the disconnect
      return;
    }
    part.sent += static_cast<size_t>(n);
    if (part.sent == part.bytes->size()) waiting_.pop_front();
  }
  if (ending_) shutdown(fd_.get(), SHUT_WR);
}

void Connection::end_sending() {
  ending_ = true;
  if (!sending()) shutdown(fd_.get(), SHUT_WR);
}

}  // namespace collc
