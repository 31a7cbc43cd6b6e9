#include "bootstrap/door.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace collc {
namespace {

constexpr int64_t kWordsMs = 5000;   // a stranger who has not said his words by then goes
constexpr int64_t kClosedMs = 20;    // how long nobody is let in where there is no descriptor
constexpr size_t kMostStrangers = 128;
constexpr int kTurn = 256;  // how many are let in before others are heard

// Strangers must not take the descriptors that the application needs.
size_t seats() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostStrangers;
  return std::clamp<size_t>(static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 16, 4, kMostStrangers);
}

Descriptor open_reserve() {
  return Descriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

}  // namespace

Door::Door(Descriptor listening, size_t words_size, bool users_only)
    : listening_(std::move(listening)),
      words_size_(words_size),
      users_only_(users_only),
      most_(seats()),
      reserve_(open_reserve()) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  local_ = getsockname(listening_.get(), reinterpret_cast<sockaddr *>(&address), &size) == 0 && address.ss_family == AF_UNIX;
}

void Door::add_to(std::vector<pollfd> *polled) const {
  // Without a descriptor, whoever waits outside would wake us again and again.
  polled->push_back({now_ms() < closed_until_ ? -1 : listening_.get(), POLLIN, 0});
  for (const Seats *seats : {&ours_, &others_})
    for (const Stranger &one : *seats) polled->push_back({one.fd.get(), POLLIN, 0});
}

void Door::attend(const pollfd **at, const Greet &greet) {
  const bool knocking = (*at)++->revents != 0;
  const int64_t now = now_ms();
  for (Seats *seats : {&ours_, &others_}) {
    Seats waiting;
    waiting.swap(*seats);  // to greet one may need the descriptor of another
    for (Stranger &one : waiting) {
      const bool spoke = (*at)++->revents != 0;
      if ((!spoke || hear(one, greet)) && now - one.since < kWordsMs) seats->push_back(std::move(one));
    }
  }
  if (knocking) accept_some(greet);
}

int Door::timeout() const {
  if (now_ms() < closed_until_) return static_cast<int>(kClosedMs);
  return ours_.empty() && others_.empty() ? -1 : 1000;
}

bool Door::has_reserve() {
  if (!reserve_) reserve_ = open_reserve();
  while (!reserve_ && make_room()) reserve_ = open_reserve();
  return static_cast<bool>(reserve_);
}

void Door::accept_some(const Greet &greet) {
  for (int i = 0; i < kTurn; ++i)
    if (!accept_one(greet)) break;
  if (!listening_.intact()) listening_.reset();  // or what has its number would wake us for ever
  if (!reserve_) reserve_ = open_reserve();
}

// False when nobody else can be let in now.
bool Door::accept_one(const Greet &greet) {
  Stranger stranger;
  stranger.fd = Descriptor::open([this] { return accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (!stranger.fd) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF || errno == ENOTSOCK || errno == EINVAL) return false;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return true;  // that caller's trouble
    if (make_room()) return true;
    if (reserve_) {
      reserve_.reset();
      return true;
    }
    closed_until_ = now_ms() + kClosedMs;
    return false;
  }
  uid_t user = 0;
  const bool ours = local_ && peer_user(stranger.fd.get(), &user) && user == geteuid();
  if (users_only_ && !ours) return true;
  stranger.since = now_ms();
  if (!hear(stranger, greet)) return true;
  Seats &seats = ours ? ours_ : others_;
  if (seats.size() >= most_) seats.pop_front();
  seats.push_back(std::move(stranger));
  return true;
}

bool Door::hear(Stranger &stranger, const Greet &greet) {
  while (stranger.words.size() < words_size_) {
    unsigned char data[64];
    const ssize_t n = recv(stranger.fd.get(), data, std::min(sizeof data, words_size_ - stranger.words.size()), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    stranger.words.insert(stranger.words.end(), data, data + n);
  }
  greet(std::move(stranger.fd), stranger.words.data());
  return false;
}

bool Door::make_room() {
  for (Seats *seats : {&others_, &ours_}) {
    if (seats->empty()) continue;
    seats->pop_front();
    return true;
  }
  return false;
}

}  // namespace collc
