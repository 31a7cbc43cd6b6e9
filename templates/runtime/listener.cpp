#include "listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace collc {
namespace {

constexpr int64_t kLingerMs = 20000;    // how long the last answer may take to be read
constexpr int64_t kTellMs = 60000;      // how long ranks that join a failed creation are told why, at most
constexpr int64_t kAnswerMs = 10000;    // a rank that takes nothing of an answer for so long is lost
constexpr int64_t kGraceMs = 2000;      // a rank that waits for another by itself knows more, and speaks first
constexpr int kTickMs = 200;            // how often the clock is looked at where somebody waits
constexpr size_t kMostStrangers = 256;  // connections without a valid hello; the oldest goes first

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Reads what is there, at most up to `most` buffered bytes; false when the peer has gone.
bool read_some(int fd, size_t most, Bytes *received) {
  unsigned char data[4096];
  while (received->size() < most) {
    const ssize_t n = recv(fd, data, std::min(sizeof data, most - received->size()), 0);
    if (n <= 0) return n < 0 && (would_block() || errno == EINTR);
    received->insert(received->end(), data, data + n);
  }
  return true;
}

void write_fully(int fd, const void *data, size_t size) {
  const char *at = static_cast<const char *>(data);
  const int64_t deadline = now_ms() + kAnswerMs;
  while (size > 0 && now_ms() < deadline) {
    const ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (would_block()) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

void answer(int fd, ncclResult_t code, const std::string &words) {
  const Frame frame{static_cast<uint32_t>(words.size()), static_cast<uint32_t>(code)};
  write_fully(fd, &frame, sizeof frame);
  write_fully(fd, words.data(), words.size());
}

}  // namespace

void prepare_socket(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

Listener::~Listener() {
  close(socket_);
  for (const Peer &peer : strangers_) close(peer.fd);
  for (const Dismissed &one : dismissed_) close(one.fd);
  for (const auto &[rank, peer] : ranks_)
    if (peer.fd >= 0) close(peer.fd);
}

void Listener::serve() {
  while (!over()) {
    std::vector<pollfd> polled{{socket_, POLLIN, 0}};
    for (const Peer &peer : strangers_) polled.push_back({peer.fd, POLLIN, 0});
    for (const auto &[rank, peer] : ranks_)
      if (peer.fd >= 0) polled.push_back({peer.fd, POLLIN, 0});
    for (const Dismissed &one : dismissed_) polled.push_back({one.fd, POLLIN, 0});
    if (poll(polled.data(), polled.size(), timeout()) < 0 && errno != EINTR) return;
    accept_peers();
    drain_dismissed();
    hear_strangers();
    hear_ranks();
    look_at_the_clock();
  }
  const int64_t deadline = now_ms() + kLingerMs;
  while (!dismissed_.empty() && now_ms() < deadline) {
    std::vector<pollfd> polled;
    for (const Dismissed &one : dismissed_) polled.push_back({one.fd, POLLIN, 0});
    poll(polled.data(), polled.size(), 100);
    drain_dismissed();
  }
}

bool Listener::over() const {
  if (failure_ != ncclSuccess && now_ms() - failed_ms_ > std::min(limit_ms_, kTellMs)) return true;
  return nranks_ != 0 && ranks_.size() == nranks_ &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const auto &r) { return r.second.fd < 0; });
}

int Listener::timeout() const {
  if (nranks_ != 0 && failure_ == ncclSuccess && (complete_ == 0 || round_begun())) return kTickMs;
  return failure_ != ncclSuccess || !strangers_.empty() || !dismissed_.empty() ? 1000 : -1;
}

void Listener::dismiss(int fd) {
  shutdown(fd, SHUT_WR);
  dismissed_.push_back({fd, now_ms()});
}

void Listener::drain_dismissed() {
  std::vector<Dismissed> remaining;
  for (const Dismissed &one : dismissed_) {
    char data[4096];
    ssize_t n = 1;
    while (n > 0) n = recv(one.fd, data, sizeof data, 0);
    const bool open = n < 0 && (would_block() || errno == EINTR);
    if (open && now_ms() - one.since < kLingerMs)
      remaining.push_back(one);
    else
      close(one.fd);
  }
  dismissed_ = std::move(remaining);
}

void Listener::accept_peers() {
  for (;;) {
    const int fd = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    prepare_socket(fd);
    if (strangers_.size() == kMostStrangers) {
      close(strangers_.front().fd);
      strangers_.erase(strangers_.begin());
    }
    Peer peer;
    peer.fd = fd;
    peer.since = now_ms();
    strangers_.push_back(std::move(peer));
  }
}

void Listener::hear_strangers() {
  std::vector<Peer> remaining;
  for (Peer &peer : strangers_) {
    const bool there = read_some(peer.fd, sizeof(Hello), &peer.received);
    if (peer.received.size() == sizeof(Hello)) {
      Hello hello;
      std::memcpy(&hello, peer.received.data(), sizeof hello);
      peer.received.clear();
      welcome(peer, hello);
    } else if (there && now_ms() - peer.since < kHelloMs) {
      remaining.push_back(std::move(peer));
    } else {
      close(peer.fd);
    }
  }
  strangers_ = std::move(remaining);
}

void Listener::welcome(Peer &peer, const Hello &hello) {
  unsigned char differs = 0;  // in constant time, as secrets are compared
  for (size_t i = 0; i < kSecretBytes; ++i) differs |= hello.secret[i] ^ id_.secret[i];
  if (hello.magic != kHelloMagic || differs != 0 || hello.nranks == 0 || hello.rank >= hello.nranks) {
    close(peer.fd);
    return;
  }
  if (nranks_ == 0) {
    nranks_ = hello.nranks;
    round_ms_ = now_ms();
  }
  std::string refusal;
  if (hello.nranks != nranks_)
    refusal = format("rank %u says there are %u ranks, others say %u", hello.rank, hello.nranks, nranks_);
  else if (ranks_.count(hello.rank) != 0)
    refusal = format("rank %u joined twice", hello.rank);
  if (refusal.empty() && failure_ == ncclSuccess) {
    ranks_[hello.rank] = std::move(peer);
    return;
  }
  if (refusal.empty()) {
    answer(peer.fd, failure_, words_);
    ranks_[hello.rank] = {};
  } else {
    answer(peer.fd, ncclInvalidUsage, refusal);
  }
  dismiss(peer.fd);
}

bool Listener::round_begun() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto &r) { return r.second.spoke; });
}

void Listener::hear_ranks() {
  if (nranks_ == 0 || failure_ != ncclSuccess) return;
  for (auto &[rank, peer] : ranks_) {
    if (peer.fd < 0) continue;
    const bool there = read_some(peer.fd, sizeof(Frame) + kMostMessage, &peer.received);
    if (!peer.spoke && peer.received.size() >= sizeof(Frame)) {
      std::memcpy(&peer.frame, peer.received.data(), sizeof(Frame));
      if (peer.frame.size > kMostMessage) return fail_all(ncclInternalError, format("rank %u sent garbage", rank));
      if (peer.received.size() >= sizeof(Frame) + peer.frame.size) {
        const auto begin = peer.received.begin() + sizeof(Frame);
        peer.message.assign(begin, begin + peer.frame.size);
        peer.received.erase(peer.received.begin(), begin + peer.frame.size);
        (peer.frame.result == kGoodbye ? peer.done : peer.spoke) = true;
      }
    }
    if (there) continue;
    close(peer.fd);
    peer.fd = -1;
  }
  // The words of a rank that fails and leaves come before the note that it left.
  for (const auto &[rank, peer] : ranks_) {
    if (!peer.spoke || peer.frame.result == 0) continue;
    const std::string words(peer.message.begin(), peer.message.end());
    return fail_all(static_cast<ncclResult_t>(peer.frame.result), format("rank %u: ", rank) + words);
  }
  for (const auto &[rank, peer] : ranks_)
    if (peer.fd < 0 && (!peer.done || round_begun()))
      return fail_all(ncclRemoteError, format("rank %u left while the communicator was made", rank));
  if (ranks_.size() == nranks_ && std::all_of(ranks_.begin(), ranks_.end(), [](const auto &r) { return r.second.spoke; }))
    finish_round();
}

void Listener::finish_round() {
  Bytes all;
  for (const auto &[rank, peer] : ranks_) {
    const uint32_t size = static_cast<uint32_t>(peer.message.size());
    const auto *raw = reinterpret_cast<const unsigned char *>(&size);
    all.insert(all.end(), raw, raw + sizeof size);
    all.insert(all.end(), peer.message.begin(), peer.message.end());
  }
  ++complete_;
  round_ms_ = now_ms();
  for (auto &[rank, peer] : ranks_) {
    peer.spoke = false;
    const Frame frame{static_cast<uint32_t>(all.size()), 0};
    write_fully(peer.fd, &frame, sizeof frame);
    write_fully(peer.fd, all.data(), all.size());
  }
}

void Listener::look_at_the_clock() {
  if (nranks_ == 0 || failure_ != ncclSuccess) return;
  const int64_t waited = now_ms() - round_ms_;
  if (complete_ == 0 && waited > limit_ms_)
    fail_all(ncclSystemError, ranks_.size() < nranks_ ? missing() : silent());
  // Between rounds nobody waits here.
  else if (round_begun() && waited > limit_ms_ + kGraceMs)
    fail_all(ncclSystemError, silent());
}

std::string Listener::missing() const {
  std::vector<uint32_t> absent;
  for (uint32_t r = 0; r < nranks_; ++r)
    if (ranks_.count(r) == 0) absent.push_back(r);
  return format("%zu of %u ranks did not join within %g s: %s", absent.size(), nranks_, static_cast<double>(limit_ms_) / 1e3,
                list_ranks(absent).c_str());
}

std::string Listener::silent() const {
  std::vector<uint32_t> late;
  for (const auto &[rank, peer] : ranks_)
    if (!peer.spoke) late.push_back(rank);
  return too_late(late, "take the next step of the creation", static_cast<double>(limit_ms_) / 1e3);
}

void Listener::fail_all(ncclResult_t code, const std::string &words) {
  failure_ = code;
  words_ = words;
  failed_ms_ = now_ms();
  for (auto &[rank, peer] : ranks_) {
    if (peer.fd >= 0) {
      answer(peer.fd, code, words);
      dismiss(peer.fd);
    }
    peer = {};
  }
}

}  // namespace collc
