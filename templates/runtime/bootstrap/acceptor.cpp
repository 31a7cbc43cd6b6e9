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
constexpr int64_t kClosedMs = 20;    // pause in accepting after the process has run out of descriptors
constexpr size_t kMaxPending = 128;
constexpr int kAcceptsPerRound = 256;  // connections accepted before the pending ones are served again

// Limits unauthenticated connections, so that they cannot use up the descriptors that the application needs.
size_t pending_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxPending;
  return std::clamp<size_t>(static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 16, 4, kMaxPending);
}

Descriptor open_reserve() {
  return Descriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

}  // namespace

Acceptor::Acceptor(Descriptor listening, size_t body_size, bool users_only)
    : listening_(std::move(listening)),
      body_size_(body_size),
      users_only_(users_only),
      limit_(pending_limit()),
      reserve_(open_reserve()) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  local_ = getsockname(listening_.get(), reinterpret_cast<sockaddr *>(&address), &size) == 0 && address.ss_family == AF_UNIX;
}

void Acceptor::add_to(std::vector<pollfd> *polled) const {
  // While there is no free descriptor, clients in the backlog would end each poll at once.
  polled->push_back({now_ms() < closed_until_ ? -1 : listening_.get(), POLLIN, 0});
  for (const PendingQueue *queue : {&challenged_, &same_user_, &others_})
    for (const PendingConnection &one : *queue) polled->push_back({one.fd.get(), POLLIN, 0});
}

void Acceptor::handle_events(const pollfd **at, const Owner &owner) {
  const bool has_callers = (*at)++->revents != 0;
  const int64_t now = now_ms();
  // The loop must not change the length of the queues except at their end, because `at` follows their order. So a connection
  // that ends, or is closed to free its descriptor, only loses its descriptor here. Newly challenged connections are appended
  // behind the polled ones.
  for (PendingQueue *queue : {&challenged_, &same_user_, &others_}) {
    const size_t count = queue->size();
    for (size_t i = 0; i < count; ++i) {
      const bool sent = (*at)++->revents != 0;
      PendingConnection &one = (*queue)[i];
      if (one.fd && ((sent && !receive_from(one, owner)) || now - one.since >= kHandshakeMs)) one.fd.reset();
    }
  }
  for (PendingQueue *queue : {&challenged_, &same_user_, &others_})
    queue->erase(std::remove_if(queue->begin(), queue->end(), [](const PendingConnection &one) { return !one.fd; }),
                 queue->end());
  if (has_callers) accept_some(owner);
}

int Acceptor::timeout() const {
  if (now_ms() < closed_until_) return static_cast<int>(kClosedMs);
  return same_user_.empty() && others_.empty() && challenged_.empty() ? -1 : 1000;
}

bool Acceptor::has_reserve() {
  if (!reserve_) reserve_ = open_reserve();
  while (!reserve_ && (drop_oldest(others_) || drop_oldest(same_user_) || drop_oldest(challenged_))) reserve_ = open_reserve();
  return static_cast<bool>(reserve_);
}

void Acceptor::accept_some(const Owner &owner) {
  for (int i = 0; i < kAcceptsPerRound; ++i)
    if (!accept_one(owner)) break;
  if (!listening_.intact()) listening_.reset();  // else a foreign file that now has this number would end each poll at once
  if (!reserve_) reserve_ = open_reserve();
}

// Returns false if no further connection can be accepted now.
bool Acceptor::accept_one(const Owner &owner) {
  PendingConnection pending;
  pending.fd = Descriptor::open([this] { return accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (!pending.fd) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF || errno == ENOTSOCK || errno == EINVAL) return false;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
      return true;  // the error concerns only that connection
    // Challenged connections are kept, because their callers may be ranks, and they answer soon.
    if (drop_oldest(others_) || drop_oldest(same_user_)) return true;
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
  if (!receive_from(pending, owner)) return true;
  PendingQueue &queue = ours ? same_user_ : others_;
  if (queue.size() >= limit_) queue.pop_front();
  queue.push_back(std::move(pending));
  return true;
}

bool Acceptor::receive_from(PendingConnection &pending, const Owner &owner) {
  const size_t size = pending.hello.empty() ? hello_bytes(body_size_) : sizeof(Proof);
  while (pending.words.size() < size) {
    unsigned char data[128];
    const ssize_t n = recv(pending.fd.get(), data, std::min(sizeof data, size - pending.words.size()), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    pending.words.insert(pending.words.end(), data, data + n);
  }
  if (pending.hello.empty()) {
    take_hello(pending, owner);
    return false;
  }
  const Proof expected = answer_to(pending.key, pending.hello, pending.challenge);
  if (equal_secrets(expected.data(), pending.words.data(), expected.size()))
    owner.admit(std::move(pending.fd), pending.hello.data());
  return false;
}

// Challenges the caller and moves its connection to challenged_, or refuses it by a challenge of zeros.
void Acceptor::take_hello(PendingConnection &pending, const Owner &owner) {
  PendingConnection asked;
  asked.key = owner.key_for(pending.words.data());
  asked.hello = std::move(pending.words);
  const bool is_copy = std::any_of(challenged_.begin(), challenged_.end(),
                                   [&asked](const PendingConnection &one) { return one.fd && one.hello == asked.hello; });
  const bool may_ask = !asked.key.empty() && !is_copy && is_hello(asked.key, asked.hello) &&
                       make_challenge(asked.key, asked.hello, &asked.challenge).ok();
  const ssize_t sent = send(pending.fd.get(), &asked.challenge, sizeof asked.challenge, MSG_NOSIGNAL);
  if (!may_ask || sent != static_cast<ssize_t>(sizeof asked.challenge)) return;
  asked.fd = std::move(pending.fd);
  asked.since = now_ms();
  challenged_.push_back(std::move(asked));
}

bool Acceptor::drop_oldest(PendingQueue &queue) {
  const auto oldest =
      std::find_if(queue.begin(), queue.end(), [](const PendingConnection &one) { return static_cast<bool>(one.fd); });
  if (oldest == queue.end()) return false;
  oldest->fd.reset();
  return true;
}

}  // namespace collc
