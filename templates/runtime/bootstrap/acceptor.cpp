#include "bootstrap/acceptor.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace collc {
namespace {

constexpr int64_t kHandshakeMs = 5000;   // a connection whose handshake is incomplete by then is closed
constexpr int64_t kClosedMs = 20;    // pause in accepting after running out of descriptors
constexpr size_t kMaxPending = 128;
constexpr int kAcceptsPerRound = 256;  // connections accepted before the others are served

// Unauthenticated connections must not use up the descriptors that the application needs.
size_t pending_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxPending;
  return std::clamp<size_t>(static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 16, 4, kMaxPending);
}

Descriptor open_reserve() {
  return Descriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

}  // namespace

Acceptor::Acceptor(Descriptor listening, size_t hello_size, bool users_only)
    : listening_(std::move(listening)),
      hello_size_(hello_size),
      users_only_(users_only),
      limit_(pending_limit()),
      reserve_(open_reserve()) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  local_ = getsockname(listening_.get(), reinterpret_cast<sockaddr *>(&address), &size) == 0 && address.ss_family == AF_UNIX;
}

void Acceptor::add_to(std::vector<pollfd> *polled) const {
  // Without a free descriptor, every client in the backlog would wake us again and again.
  polled->push_back({now_ms() < closed_until_ ? -1 : listening_.get(), POLLIN, 0});
  for (const PendingQueue *queue : {&same_user_, &others_})
    for (const PendingConnection &one : *queue) polled->push_back({one.fd.get(), POLLIN, 0});
}

void Acceptor::handle_events(const pollfd **at, const HandshakeHandler &on_handshake) {
  const bool has_callers = (*at)++->revents != 0;
  const int64_t now = now_ms();
  for (PendingQueue *queue : {&same_user_, &others_}) {
    PendingQueue waiting;
    waiting.swap(*queue);  // handling one may need the descriptor of another
    for (PendingConnection &one : waiting) {
      const bool sent = (*at)++->revents != 0;
      if ((!sent || receive_from(one, on_handshake)) && now - one.since < kHandshakeMs) queue->push_back(std::move(one));
    }
  }
  if (has_callers) accept_some(on_handshake);
}

int Acceptor::timeout() const {
  if (now_ms() < closed_until_) return static_cast<int>(kClosedMs);
  return same_user_.empty() && others_.empty() ? -1 : 1000;
}

bool Acceptor::has_reserve() {
  if (!reserve_) reserve_ = open_reserve();
  while (!reserve_ && make_room()) reserve_ = open_reserve();
  return static_cast<bool>(reserve_);
}

void Acceptor::accept_some(const HandshakeHandler &on_handshake) {
  for (int i = 0; i < kAcceptsPerRound; ++i)
    if (!accept_one(on_handshake)) break;
  if (!listening_.intact()) listening_.reset();  // or whatever now has its number would keep waking us
  if (!reserve_) reserve_ = open_reserve();
}

// False if no further connection can be accepted now.
bool Acceptor::accept_one(const HandshakeHandler &on_handshake) {
  PendingConnection pending;
  pending.fd = Descriptor::open([this] { return accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (!pending.fd) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF || errno == ENOTSOCK || errno == EINVAL) return false;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
      return true;  // an error of that connection alone
    if (make_room()) return true;
    if (reserve_) {
      reserve_.reset();
      return true;
    }
    closed_until_ = now_ms() + kClosedMs;
    return false;
  }
  uid_t user = 0;
  const bool ours = local_ && peer_user(pending.fd.get(), &user) && user == geteuid();
  if (users_only_ && !ours) return true;
  pending.since = now_ms();
  if (!receive_from(pending, on_handshake)) return true;
  PendingQueue &queue = ours ? same_user_ : others_;
  if (queue.size() >= limit_) queue.pop_front();
  queue.push_back(std::move(pending));
  return true;
}

bool Acceptor::receive_from(PendingConnection &pending, const HandshakeHandler &on_handshake) {
  while (pending.words.size() < hello_size_) {
    unsigned char data[64];
    const ssize_t n = recv(pending.fd.get(), data, std::min(sizeof data, hello_size_ - pending.words.size()), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    pending.words.insert(pending.words.end(), data, data + n);
  }
  on_handshake(std::move(pending.fd), pending.words.data());
  return false;
}

bool Acceptor::make_room() {
  for (PendingQueue *queue : {&others_, &same_user_}) {
    if (queue->empty()) continue;
    queue->pop_front();
    return true;
  }
  return false;
}

}  // namespace collc
