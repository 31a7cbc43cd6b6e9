#include "rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
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
#include <memory>
#include <system_error>
#include <thread>

#include "environment.h"
#include "listener.h"

namespace collc {
namespace {

constexpr char kIdMagic[8] = {'c', 'o', 'l', 'l', 'c', 'i', 'd', '1'};
constexpr int kSliceMs = 50;  // how often `stop` is polled

int make_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

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
  const char *wanted = read_text("COLLC_SOCKET_IFNAME");
  if (wanted == nullptr) wanted = read_text("NCCL_SOCKET_IFNAME");
  if (wanted != nullptr && *wanted == '^') wanted = nullptr;
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

std::string list_ranks(const std::vector<uint32_t> &ranks) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return ranks.size() <= kMost ? text : text + format(" and %zu more", ranks.size() - kMost);
}

std::string too_late(const std::vector<uint32_t> &ranks, const char *what, double seconds) {
  return format("%s %s did not %s within %g s (COLLC_BOOTSTRAP_TIMEOUT): stopped, or stuck?", ranks.size() == 1 ? "rank" : "ranks",
                list_ranks(ranks).c_str(), what, seconds);
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

Status Rendezvous::join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, double seconds) {
  const Id unpacked = unpack(id);
  nranks_ = nranks;
  seconds_ = seconds;
  start_waiting();
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
  start_waiting();
  Frame frame{static_cast<uint32_t>(message.size()), 0};
  if (!failure.ok()) frame = {static_cast<uint32_t>(failure.text().size()), static_cast<uint32_t>(failure.code())};
  COLLC_RETURN_IF_FAILED(send_all(&frame, sizeof frame));
  if (!failure.ok()) {
    send_all(failure.text().data(), failure.text().size()).ok();  // the failure itself is what matters
    return failure;
  }
  COLLC_RETURN_IF_FAILED(send_all(message.data(), message.size()));
  Bytes body;
  COLLC_RETURN_IF_FAILED(receive(&body));
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

void Rendezvous::leave() {
  const Frame frame{0, kGoodbye};
  send_all(&frame, sizeof frame).ok();  // without a listener there is nobody to tell
}

Status Rendezvous::verdict() {
  if (stop_()) return fail(ncclInternalError, "the communicator was aborted while it was made");
  start_waiting();
  Bytes body;
  COLLC_RETURN_IF_FAILED(receive(&body));
  return fail(ncclInternalError, "the bootstrap got garbage");
}

Status Rendezvous::receive(Bytes *body) {
  Frame frame;
  COLLC_RETURN_IF_FAILED(receive_all(&frame, sizeof frame));
  if (frame.result >= ncclNumResults || frame.size > uint64_t{kMostMessage} * std::max(1u, nranks_))
    return fail(ncclInternalError, "the bootstrap got garbage");
  body->resize(frame.size);
  COLLC_RETURN_IF_FAILED(receive_all(body->data(), body->size()));
  if (frame.result == 0) return {};
  return Status(static_cast<ncclResult_t>(frame.result), std::string(body->begin(), body->end()));
}

bool Rendezvous::connected() {
  char byte;
  const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 ? false : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

void Rendezvous::start_waiting() {
  // The listener, which knows whom all wait for, speaks first.
  deadline_ = now_ms() + static_cast<int64_t>(seconds_ * 1000) + kHelloMs;
}

Status Rendezvous::wait(short events) {
  for (;;) {
    if (stop_()) return fail(ncclInternalError, "the communicator was aborted while it was made");
    if (now_ms() > deadline_)
      return fail(ncclSystemError,
                  "the process that made the id did not answer within %g s (COLLC_BOOTSTRAP_TIMEOUT): stopped, or stuck?",
                  seconds_);
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
