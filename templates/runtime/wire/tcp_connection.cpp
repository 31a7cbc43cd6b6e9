#include "wire/tcp_connection.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace collc {
namespace {

constexpr size_t kBuffer = 64 << 10;
// Bytes in the kernel cannot be overtaken, so messages that free slots wait behind no more than this many.
constexpr int kMaxUnsentBytes = 256 << 10;
constexpr size_t kParts = 32;  // messages in one system call
constexpr uint32_t kLongestUs = 2000000;  // longer round trips are no measurement
constexpr int64_t kSiteUs = 10000;        // longer round trips leave the site
constexpr size_t kLongBody = 4 << 10, kMaxLowWaterBytes = 64 << 10;
constexpr int kReads = 16;     // system calls before other work gets its turn

void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

// Returns the shortest round trip of the last minutes, as the kernel has measured it; 0 if it does not report it. The headers
// of C libraries have only the first part of tcp_info.
int64_t min_round_trip_us(int fd) {
  struct {
    unsigned char first_fields[148];
    uint32_t min_us;
  } info = {};
  socklen_t size = sizeof info;
  const bool is_reported = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && size == sizeof info;
  return is_reported && info.min_us < kLongestUs ? info.min_us : 0;
}

// BBR lets a connection have only four packets in flight for 200 ms in every 10 s, to measure the shortest round trip. Calls
// wait for the slowest of all connections, which do this one after another: a server that sends to three others is delayed
// for 6% of the time. Inside a site, where no packets are lost on the way, any other congestion control does as well.
void replace_bbr(int fd) {
  char algorithm[16] = {};
  socklen_t size = sizeof algorithm - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, algorithm, &size) != 0 || std::strcmp(algorithm, "bbr") != 0) return;
  if (min_round_trip_us(fd) > kSiteUs) return;
  // A process that may not choose the first one may always choose the second one.
  for (const char *name : {"cubic", "reno"})
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, static_cast<socklen_t>(std::strlen(name))) == 0) return;
}

}  // namespace

TcpConnection::TcpConnection(Descriptor fd, std::unique_ptr<TlsChannel> tls, std::string interface, std::string name,
                             double silence)
    : fd_(std::move(fd)),
      tls_(std::move(tls)),
      interface_(std::move(interface)),
      name_(std::move(name)),
      silence_(silence),
      heard_ms_(now_ms()),
      buffer_(kBuffer) {
  const int limit_ms = static_cast<int>(std::min(silence * 1000, 2e9));
  set(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, limit_ms);
  set(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, limit_ms / 4000));
  set(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, limit_ms / 4000));
  set(fd_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMaxUnsentBytes);
}

void TcpConnection::send(const WireHead &head, const void *body) {
  parts_.push_back({head, static_cast<const char *>(body), 0});
  queued_bytes_ += sizeof head + head.bytes;
}

void TcpConnection::send_urgent(const WireHead &head, const void *body) {
  if (nurgent_ == 0 && !parts_.empty() && parts_.front().done > 0) nurgent_ = 1;
  parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(nurgent_++), {head, static_cast<const char *>(body), 0});
  queued_bytes_ += sizeof head + head.bytes;
}

void TcpConnection::limit_unsent(int bytes) { set(fd_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes); }

void TcpConnection::share_link() {
  shares_link_ = true;
  avoid_bbr();
}

void TcpConnection::avoid_bbr() { replace_bbr(fd_.get()); }

bool TcpConnection::drained() {
  int unacknowledged = 0;
  return all_handed_over() && ioctl(fd_.get(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
}

void TcpConnection::add_to(std::vector<pollfd> *polled) const {
  polled->push_back({fd_.get(), static_cast<short>(all_handed_over() || is_full_ ? POLLIN : POLLIN | POLLOUT), 0});
}

Status TcpConnection::progress(WireSink &sink, bool *moved, bool *ended) {
  if (!fd_) return fail(ncclSystemError, "the connection with %s was closed by this process", name_.c_str());
  COLLC_RETURN_IF_FAILED(read(sink, moved, ended));
  COLLC_RETURN_IF_FAILED(write(moved, ended));
  const int64_t silent_ms = now_ms() - heard_ms_;
  if (static_cast<double>(silent_ms) > silence_ * 1000)
    return fail(ncclRemoteError, "nothing came from %s for %.0f s (COLLC_NET_TIMEOUT)", name_.c_str(), silence_);
  return {};
}

Status TcpConnection::broken(const char *what, int error, bool *ended) const {
  *ended = error == ECONNRESET || error == EPIPE;
  if (tls_ != nullptr && error == EPROTO)
    return fail(ncclRemoteError, "the connection with %s broke (%s)", name_.c_str(), tls_->why().c_str());
  return fail_errno(format("the connection with %s broke (%s)", name_.c_str(), what), error);
}

ssize_t TcpConnection::hand_over(iovec *pieces, size_t count) {
  if (tls_ != nullptr) return tls_->send(pieces, count);
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  return sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t TcpConnection::fetch(iovec *pieces, size_t count) {
  if (tls_ != nullptr) return tls_->receive(static_cast<char *>(pieces[0].iov_base), pieces[0].iov_len);
  return readv(fd_.get(), pieces, static_cast<int>(count));
}

uint64_t TcpConnection::may_hand_over() {
  if (!shares_link_) return UINT64_MAX;
  const int64_t now = now_us();
  if (allowance_.wants_look(now)) {
    int in_kernel = 0;
    if (ioctl(fd_.get(), SIOCOUTQ, &in_kernel) != 0) return UINT64_MAX;
    allowance_.look(now, static_cast<uint64_t>(in_kernel), allowance_.measures(now) ? min_round_trip_us(fd_.get()) : 0);
  }
  return allowance_.room(queued_bytes_);
}

size_t TcpConnection::gather(iovec *pieces) {
  uint64_t room = may_hand_over();
  is_full_ = room == 0;
  size_t count = 0;
  const auto add = [&](const char *from, size_t bytes) {
    bytes = std::min<size_t>(bytes, room);
    if (bytes > 0) pieces[count++] = {const_cast<char *>(from), bytes};
    room -= bytes;
  };
  for (size_t i = 0; i < std::min(parts_.size(), kParts); ++i) {
    const Part &part = parts_[i];
    if (part.done < sizeof part.head) add(reinterpret_cast<const char *>(&part.head) + part.done, sizeof part.head - part.done);
    const size_t of_body = part.done < sizeof part.head ? 0 : part.done - sizeof part.head;
    if (of_body < part.head.bytes) add(part.body + of_body, part.head.bytes - of_body);
  }
  return count;
}

Status TcpConnection::write(bool *moved, bool *ended) {
  while (!parts_.empty()) {
    iovec pieces[2 * kParts];
    const size_t count = gather(pieces);
    if (count == 0) break;
    const ssize_t n = hand_over(pieces, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (n < 0) return broken("sending", errno, ended);
    *moved = true;
    queued_bytes_ -= static_cast<uint64_t>(n);
    allowance_.hand_over(static_cast<uint64_t>(n));
    for (auto rest = static_cast<size_t>(n); rest > 0;) {
      Part &part = parts_.front();
      const size_t part_bytes = sizeof part.head + part.head.bytes, done_bytes = std::min(rest, part_bytes - part.done);
      part.done += done_bytes;
      rest -= done_bytes;
      if (part.done < part_bytes) break;
      parts_.pop_front();
      if (nurgent_ > 0) --nurgent_;
      ++sent_;
    }
  }
  if (tls_ != nullptr && !tls_->flush()) {
    if (errno == EAGAIN) return {};
    return broken("sending", errno, ended);
  }
  if (is_finishing_ && !is_shut_ && parts_.empty()) {
    shutdown(fd_.get(), SHUT_WR);
    is_shut_ = true;
  }
  return {};
}

Status TcpConnection::read(WireSink &sink, bool *moved, bool *ended) {
  for (int reads = 0; reads < kReads || (tls_ != nullptr && tls_->has_more()); ++reads) {
    // A long body goes directly to its place; bytes that follow it go into the buffer.
    iovec pieces[2];
    size_t count = 0;
    const bool is_direct = in_body_ && missing_bytes_ > 0 && begin_ == end_;
    if (is_direct) pieces[count++] = {body_, missing_bytes_};
    if (begin_ == end_) begin_ = end_ = 0;
    pieces[count++] = {buffer_.data() + end_, buffer_.size() - end_};
    const ssize_t n = fetch(pieces, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wake_for(missing_bytes_);
      return {};
    }
    if (n < 0) return broken("receiving", errno, ended);
    if (n == 0) {
      *ended = true;
      return fail(ncclRemoteError, "%s has closed its connection", name_.c_str());
    }
    heard_ms_ = now_ms();
    auto rest = static_cast<size_t>(n);
    if (is_direct) {
      const auto done_bytes = static_cast<uint32_t>(std::min<size_t>(rest, missing_bytes_));
      body_ += done_bytes;
      missing_bytes_ -= done_bytes;
      rest -= done_bytes;
    }
    end_ += rest;
    COLLC_RETURN_IF_FAILED(take_buffered(sink, moved));
  }
  return {};
}

// While a long body is arriving, makes polls return only for much of it: waking up for each packet would cost the thread its
// sleep. A thread that reads without being woken finds more anyway.
void TcpConnection::wake_for(size_t bytes) {
  const int low_water = bytes >= kLongBody ? static_cast<int>(std::min(bytes, kMaxLowWaterBytes)) : 1;
  if (low_water == low_water_ || tls_ != nullptr || !shares_link_) return;
  set(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, low_water);
  low_water_ = low_water;
}

Status TcpConnection::take_buffered(WireSink &sink, bool *moved) {
  for (;;) {
    if (in_body_) {
      const auto done_bytes = static_cast<uint32_t>(std::min<size_t>(end_ - begin_, missing_bytes_));
      if (done_bytes > 0) {
        std::memcpy(body_, buffer_.data() + begin_, done_bytes);
        begin_ += done_bytes;
        body_ += done_bytes;
        missing_bytes_ -= done_bytes;
      }
      if (missing_bytes_ > 0) return {};
      in_body_ = false;
      *moved = true;
      COLLC_RETURN_IF_FAILED(sink.take(head_));
    }
    if (end_ - begin_ < sizeof head_) break;
    std::memcpy(&head_, buffer_.data() + begin_, sizeof head_);
    begin_ += sizeof head_;
    missing_bytes_ = head_.bytes;
    in_body_ = true;
    body_ = nullptr;
    if (missing_bytes_ > 0) COLLC_RETURN_IF_FAILED(sink.place(head_, &body_));
  }
  // Makes room for the rest of a head.
  if (begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {};
}

}  // namespace collc
