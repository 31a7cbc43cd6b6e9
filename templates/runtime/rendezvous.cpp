#include "rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>
#include <thread>

#include "environment.h"

namespace collc {
namespace {

constexpr char kIdMagic[8] = {'c', 'o', 'l', 'l', 'c', 'i', 'd', '1'};
constexpr uint32_t kHelloMagic = 0x636c6c31;  // "cll1"
constexpr uint32_t kMostMessage = 1 << 20;
constexpr int64_t kHelloMs = 5000;       // a stranger who says nothing is dropped after this
constexpr int64_t kLingerMs = 2000;      // how long the last answer may take to be read
constexpr size_t kMostStrangers = 256;   // connections without a valid hello; the oldest goes first
constexpr int kSliceMs = 50;             // how often `stop` is polled
constexpr size_t kSecretBytes = 16;

// The content of an ncclUniqueId of ours.
struct Id {
  char magic[8];
  uint16_t port;    // network order
  uint16_t family;  // AF_INET or AF_INET6
  uint32_t scope;
  unsigned char address[16];
  unsigned char secret[kSecretBytes];
  unsigned char unused[80];
};
static_assert(sizeof(Id) == sizeof(ncclUniqueId), "the id fills NCCL's 128 bytes");

struct Hello {
  uint32_t magic;
  uint32_t rank;
  uint32_t nranks;
  uint32_t reserved;
  unsigned char secret[kSecretBytes];
};

// Precedes each message. From the listener, `result` != 0 is an error whose text follows.
struct Frame {
  uint32_t size;
  uint32_t result;
};

int make_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

void prepare_socket(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

socklen_t fill_address(const Id &id, sockaddr_storage *storage) {
  std::memset(storage, 0, sizeof *storage);
  if (id.family == AF_INET6) {
    auto *v6 = reinterpret_cast<sockaddr_in6 *>(storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = id.port;
    v6->sin6_scope_id = id.scope;
    std::memcpy(&v6->sin6_addr, id.address, 16);
    return sizeof *v6;
  }
  auto *v4 = reinterpret_cast<sockaddr_in *>(storage);
  v4->sin_family = AF_INET;
  v4->sin_port = id.port;
  std::memcpy(&v4->sin_addr, id.address, 4);
  return sizeof *v4;
}

std::string name_of(const Id &id) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(id.family, id.address, text, sizeof text);
  return format("%s port %u", text, ntohs(id.port));
}

// The address that other ranks can reach: of COLLC_SOCKET_IFNAME or NCCL_SOCKET_IFNAME (a prefix), else of the first
// interface that is up and neither loopback nor a container bridge, else the loopback's.
Status choose_address(Id *id) {
  const char *wanted = std::getenv("COLLC_SOCKET_IFNAME");
  if (wanted == nullptr || *wanted == '\0') wanted = std::getenv("NCCL_SOCKET_IFNAME");
  if (wanted != nullptr && (*wanted == '\0' || *wanted == '^')) wanted = nullptr;
  if (wanted != nullptr && *wanted == '=') ++wanted;
  ifaddrs *all = nullptr;
  if (getifaddrs(&all) != 0) return fail_errno("cannot list the network interfaces", errno);
  int best = -1;
  for (const ifaddrs *at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    int score = 0;
    if (wanted != nullptr) {
      if (std::strncmp(at->ifa_name, wanted, std::strlen(wanted)) != 0) continue;
    } else if ((at->ifa_flags & IFF_LOOPBACK) == 0) {
      score = std::strncmp(at->ifa_name, "docker", 6) == 0 || std::strncmp(at->ifa_name, "veth", 4) == 0 ||
                      std::strncmp(at->ifa_name, "virbr", 5) == 0
                  ? 1
                  : 4;
    }
    score = 2 * score + (family == AF_INET ? 1 : 0);
    if (score <= best) continue;
    best = score;
    id->family = static_cast<uint16_t>(family);
    if (family == AF_INET) {
      std::memcpy(id->address, &reinterpret_cast<sockaddr_in *>(at->ifa_addr)->sin_addr, 4);
    } else {
      const auto *v6 = reinterpret_cast<sockaddr_in6 *>(at->ifa_addr);
      std::memcpy(id->address, &v6->sin6_addr, 16);
      id->scope = v6->sin6_scope_id;
    }
  }
  freeifaddrs(all);
  if (best < 0)
    return fail(ncclSystemError, "no network interface%s%.32s is up: see COLLC_SOCKET_IFNAME",
                wanted != nullptr ? " called " : "", wanted != nullptr ? wanted : "");
  return {};
}

// The listener of one id.
class Listener {
 public:
  Listener(int socket, const Id &id, double seconds)
      : socket_(socket), id_(id), limit_ms_(static_cast<int64_t>(seconds * 1000)) {}
  ~Listener() {
    close(socket_);
    for (Peer &peer : strangers_) close(peer.fd);
    for (const Dismissed &one : dismissed_) close(one.fd);
    for (auto &[rank, peer] : ranks_)
      if (peer.fd >= 0) close(peer.fd);
  }

  void serve() {
    while (!over_) {
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
      if (nranks_ != 0 && complete_ == 0 && now_ms() - first_ms_ > limit_ms_) fail_all(ncclSystemError, missing());
    }
    for (auto &[rank, peer] : ranks_)
      if (peer.fd >= 0) dismiss(peer.fd);
    ranks_.clear();
    const int64_t deadline = now_ms() + kLingerMs;
    while (!dismissed_.empty() && now_ms() < deadline) {
      std::vector<pollfd> polled;
      for (const Dismissed &one : dismissed_) polled.push_back({one.fd, POLLIN, 0});
      poll(polled.data(), polled.size(), 100);
      drain_dismissed();
    }
  }

 private:
  struct Peer {
    int fd = -1;
    int64_t since = 0;
    Bytes received;
    bool spoke = false;  // its message of this round is complete
    Frame frame = {};
    Bytes message;
  };

  // Someone who got his last answer. Closing at once, with words of his unread, would reset the connection and could
  // take the answer from him.
  struct Dismissed {
    int fd;
    int64_t since;
  };

  int timeout() const {
    return !strangers_.empty() || !dismissed_.empty() || (nranks_ != 0 && complete_ == 0) ? 1000 : -1;
  }

  void dismiss(int fd) {
    shutdown(fd, SHUT_WR);
    dismissed_.push_back({fd, now_ms()});
  }

  void drain_dismissed() {
    std::vector<Dismissed> remaining;
    for (const Dismissed &one : dismissed_) {
      char data[4096];
      ssize_t n = 1;
      while (n > 0) n = recv(one.fd, data, sizeof data, 0);
      const bool open = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
      if (open && now_ms() - one.since < kLingerMs)
        remaining.push_back(one);
      else
        close(one.fd);
    }
    dismissed_ = std::move(remaining);
  }

  void accept_peers() {
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

  // Reads what is there, at most up to `most` buffered bytes; false when the peer has gone.
  static bool read_some(Peer &peer, size_t most) {
    unsigned char data[4096];
    while (peer.received.size() < most) {
      const ssize_t n = recv(peer.fd, data, std::min(sizeof data, most - peer.received.size()), 0);
      if (n > 0) {
        peer.received.insert(peer.received.end(), data, data + n);
        continue;
      }
      return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    }
    return true;
  }

  void hear_strangers() {
    std::vector<Peer> remaining;
    for (Peer &peer : strangers_) {
      const bool there = read_some(peer, sizeof(Hello));
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

  void welcome(Peer &peer, const Hello &hello) {
    unsigned char differs = 0;  // in constant time, as secrets are compared
    for (size_t i = 0; i < kSecretBytes; ++i) differs |= hello.secret[i] ^ id_.secret[i];
    if (hello.magic != kHelloMagic || differs != 0 || hello.nranks == 0 || hello.rank >= hello.nranks) {
      close(peer.fd);
      return;
    }
    if (nranks_ == 0) {
      nranks_ = hello.nranks;
      first_ms_ = now_ms();
    }
    std::string refusal;
    if (hello.nranks != nranks_)
      refusal = format("rank %u says there are %u ranks, others say %u", hello.rank, hello.nranks, nranks_);
    else if (ranks_.count(hello.rank) != 0)
      refusal = format("rank %u joined twice", hello.rank);
    if (refusal.empty()) {
      ranks_[hello.rank] = std::move(peer);
      return;
    }
    answer(peer.fd, ncclInvalidUsage, refusal);
    dismiss(peer.fd);
  }

  void hear_ranks() {
    for (auto &[rank, peer] : ranks_) {
      if (peer.fd < 0) continue;
      const bool there = read_some(peer, sizeof(Frame) + kMostMessage);
      if (!peer.spoke && peer.received.size() >= sizeof(Frame)) {
        std::memcpy(&peer.frame, peer.received.data(), sizeof(Frame));
        if (peer.frame.size > kMostMessage) return fail_all(ncclInternalError, format("rank %u sent garbage", rank));
        if (peer.received.size() >= sizeof(Frame) + peer.frame.size) {
          const auto begin = peer.received.begin() + sizeof(Frame);
          peer.message.assign(begin, begin + peer.frame.size);
          peer.received.erase(peer.received.begin(), begin + peer.frame.size);
          peer.spoke = true;
        }
      }
      if (there) continue;
      close(peer.fd);
      peer.fd = -1;
      // Between rounds a rank may leave: then it is done. With a round begun or ranks missing, the others wait in vain.
      const bool waited = ranks_.size() < nranks_ || !peer.received.empty() ||
                          std::any_of(ranks_.begin(), ranks_.end(), [](const auto &r) { return r.second.spoke; });
      if (waited) return fail_all(ncclRemoteError, format("rank %u left while the communicator was made", rank));
    }
    if (nranks_ == 0 || ranks_.size() < nranks_) return;
    if (std::all_of(ranks_.begin(), ranks_.end(), [](const auto &r) { return r.second.fd < 0; })) {
      over_ = true;
      return;
    }
    for (const auto &[rank, peer] : ranks_) {
      if (!peer.spoke) continue;
      if (peer.frame.result != 0)
        return fail_all(static_cast<ncclResult_t>(peer.frame.result), std::string(peer.message.begin(), peer.message.end()));
    }
    if (std::all_of(ranks_.begin(), ranks_.end(), [](const auto &r) { return r.second.spoke; })) finish_round();
  }

  void finish_round() {
    Bytes all;
    for (const auto &[rank, peer] : ranks_) {
      const uint32_t size = static_cast<uint32_t>(peer.message.size());
      const auto *raw = reinterpret_cast<const unsigned char *>(&size);
      all.insert(all.end(), raw, raw + sizeof size);
      all.insert(all.end(), peer.message.begin(), peer.message.end());
    }
    ++complete_;
    for (auto &[rank, peer] : ranks_) {
      peer.spoke = false;
      const Frame frame{static_cast<uint32_t>(all.size()), 0};
      write_fully(peer.fd, &frame, sizeof frame);
      write_fully(peer.fd, all.data(), all.size());
    }
  }

  std::string missing() const {
    std::string text;
    uint32_t count = 0;
    for (uint32_t r = 0; r < nranks_; ++r) {
      if (ranks_.count(r) != 0) continue;
      if (++count <= 8) text += (text.empty() ? "" : ", ") + std::to_string(r);
    }
    if (count > 8) text += format(" and %u more", count - 8);
    return format("%u of %u ranks did not join within %.0f s: %s", count, nranks_, static_cast<double>(limit_ms_) / 1e3,
                  text.c_str());
  }

  void fail_all(ncclResult_t code, const std::string &text) {
    for (auto &[rank, peer] : ranks_)
      if (peer.fd >= 0) answer(peer.fd, code, text);
    over_ = true;
  }

  static void answer(int fd, ncclResult_t code, const std::string &text) {
    const Frame frame{static_cast<uint32_t>(text.size()), static_cast<uint32_t>(code)};
    write_fully(fd, &frame, sizeof frame);
    write_fully(fd, text.data(), text.size());
  }

  // Bounded: a rank that does not read its answers for 10 s is lost.
  static void write_fully(int fd, const void *data, size_t size) {
    const char *at = static_cast<const char *>(data);
    const int64_t deadline = now_ms() + 10000;
    while (size > 0 && now_ms() < deadline) {
      const ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
      if (n > 0) {
        at += n;
        size -= static_cast<size_t>(n);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        pollfd ready{fd, POLLOUT, 0};
        poll(&ready, 1, 1000);
      } else if (errno != EINTR) {
        return;
      }
    }
  }

  int socket_;
  Id id_;
  int64_t limit_ms_;
  uint32_t nranks_ = 0;
  int64_t first_ms_ = 0;
  uint64_t complete_ = 0;  // rounds
  bool over_ = false;
  std::vector<Peer> strangers_;
  std::vector<Dismissed> dismissed_;
  std::map<uint32_t, Peer> ranks_;
};

Id unpack(const ncclUniqueId &id) {
  Id unpacked;
  std::memcpy(&unpacked, &id, sizeof unpacked);
  return unpacked;
}

}  // namespace

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

Status random_bytes(void *data, size_t size) {
  if (getrandom(data, size, 0) != static_cast<ssize_t>(size)) return fail_errno("no random numbers", errno);
  return {};
}

Status bootstrap_seconds(double *seconds) { return read_number("COLLC_BOOTSTRAP_TIMEOUT", 0.1, 1e6, 600, seconds); }

Status make_unique_id(ncclUniqueId *id) {
  Id made = {};
  std::memcpy(made.magic, kIdMagic, sizeof kIdMagic);
  double seconds = 0;
  COLLC_RETURN_IF_FAILED(bootstrap_seconds(&seconds));
  COLLC_RETURN_IF_FAILED(random_bytes(made.secret, sizeof made.secret));
  COLLC_RETURN_IF_FAILED(choose_address(&made));
  sockaddr_storage address;
  const socklen_t size = fill_address(made, &address);
  const int fd = make_socket(made.family);
  if (fd < 0) return fail_errno("cannot open a socket", errno);
  sockaddr_storage bound;
  socklen_t bound_size = sizeof bound;
  if (bind(fd, reinterpret_cast<sockaddr *>(&address), size) != 0 || listen(fd, 1024) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr *>(&bound), &bound_size) != 0) {
    const int error = errno;
    close(fd);
    return fail_errno("cannot listen on " + name_of(made), error);
  }
  made.port = made.family == AF_INET6 ? reinterpret_cast<sockaddr_in6 &>(bound).sin6_port
                                      : reinterpret_cast<sockaddr_in &>(bound).sin_port;
  // The listener must not take signals that are meant for the application.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    std::thread([listener = std::make_shared<Listener>(fd, made, seconds)] { listener->serve(); }).detach();
  } catch (const std::system_error &error) {
    status = fail(ncclSystemError, "cannot start a thread: %s", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  COLLC_RETURN_IF_FAILED(status);
  std::memcpy(id, &made, sizeof made);
  log(LogLevel::kInfo, "listening on %s", name_of(made).c_str());
  return {};
}

bool is_our_id(const ncclUniqueId &id) { return std::memcmp(unpack(id).magic, kIdMagic, sizeof kIdMagic) == 0; }

std::string secret_of(const ncclUniqueId &id) {
  std::string text;
  for (const unsigned char byte : unpack(id).secret) text += format("%02x", byte);
  return text;
}

Rendezvous::~Rendezvous() {
  if (socket_ >= 0) close(socket_);
}

Status Rendezvous::join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank) {
  const Id unpacked = unpack(id);
  double seconds = 0;
  COLLC_RETURN_IF_FAILED(bootstrap_seconds(&seconds));
  nranks_ = nranks;
  deadline_ = now_ms() + static_cast<int64_t>(seconds * 1000) + kHelloMs;  // the listener, which knows more, speaks first
  sockaddr_storage address;
  const socklen_t size = fill_address(unpacked, &address);
  socket_ = make_socket(unpacked.family);
  if (socket_ < 0) return fail_errno("cannot open a socket", errno);
  prepare_socket(socket_);
  if (connect(socket_, reinterpret_cast<sockaddr *>(&address), size) != 0 && errno != EINPROGRESS)
    return fail_errno("cannot reach rank 0's process at " + name_of(unpacked), errno);
  COLLC_RETURN_IF_FAILED(wait(POLLOUT));
  int error = 0;
  socklen_t error_size = sizeof error;
  getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &error_size);
  if (error != 0) return fail_errno("cannot reach the process that made the id, at " + name_of(unpacked), error);
  Hello hello = {};
  hello.magic = kHelloMagic;
  hello.rank = rank;
  hello.nranks = nranks;
  std::memcpy(hello.secret, unpacked.secret, kSecretBytes);
  return send_all(&hello, sizeof hello);
}

Status Rendezvous::exchange(const Bytes &message, std::vector<Bytes> *all, const Status &failure) {
  Frame frame{static_cast<uint32_t>(message.size()), 0};
  if (!failure.ok()) frame = {static_cast<uint32_t>(failure.text().size()), static_cast<uint32_t>(failure.code())};
  COLLC_RETURN_IF_FAILED(send_all(&frame, sizeof frame));
  if (!failure.ok()) {
    send_all(failure.text().data(), failure.text().size()).ok();  // the failure itself is what matters
    return failure;
  }
  COLLC_RETURN_IF_FAILED(send_all(message.data(), message.size()));
  COLLC_RETURN_IF_FAILED(receive_all(&frame, sizeof frame));
  if (frame.result >= ncclNumResults || frame.size > uint64_t{kMostMessage} * std::max(1u, nranks_))
    return fail(ncclInternalError, "the bootstrap got garbage");
  Bytes body(frame.size);
  COLLC_RETURN_IF_FAILED(receive_all(body.data(), body.size()));
  if (frame.result != 0) return Status(static_cast<ncclResult_t>(frame.result), std::string(body.begin(), body.end()));
  all->clear();
  for (size_t at = 0; at + sizeof(uint32_t) <= body.size();) {
    uint32_t size;
    std::memcpy(&size, body.data() + at, sizeof size);
    at += sizeof size;
    if (size > body.size() - at) break;
    all->emplace_back(body.begin() + static_cast<ptrdiff_t>(at), body.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
  }
  if (all->size() != nranks_) return fail(ncclInternalError, "the bootstrap got garbage");
  return {};
}

bool Rendezvous::connected() {
  char byte;
  const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 ? false : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

Status Rendezvous::wait(short events) {
  for (;;) {
    if (stop_()) return fail(ncclInternalError, "the communicator was aborted while it was made");
    if (now_ms() > deadline_) return fail(ncclSystemError, "the bootstrap took too long: see COLLC_BOOTSTRAP_TIMEOUT");
    pollfd ready{socket_, events, 0};
    if (poll(&ready, 1, kSliceMs) > 0) return {};
  }
}

Status Rendezvous::send_all(const void *data, size_t size) {
  const char *at = static_cast<const char *>(data);
  while (size > 0) {
    const ssize_t n = send(socket_, at, size, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      COLLC_RETURN_IF_FAILED(wait(POLLOUT));
    } else if (errno != EINTR) {
      return fail(ncclRemoteError, "the bootstrap lost its connection: the process that made the id has gone, or refused us");
    }
  }
  return {};
}

Status Rendezvous::receive_all(void *data, size_t size) {
  char *at = static_cast<char *>(data);
  while (size > 0) {
    const ssize_t n = recv(socket_, at, size, 0);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      COLLC_RETURN_IF_FAILED(wait(POLLIN));
    } else if (n == 0 || errno != EINTR) {
      return fail(ncclRemoteError, "the bootstrap lost its connection: the process that made the id has gone, or refused us");
    }
  }
  return {};
}

}  // namespace collc
