#include "exchange_fd.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>

#include "rendezvous.h"

namespace collc {
namespace {

constexpr int kSliceMs = 20;
constexpr int64_t kClientMs = 10000;  // a client that is this slow is dropped

socklen_t abstract_address(const std::string &name, sockaddr_un *address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  const size_t size = name.size() < sizeof address->sun_path - 1 ? name.size() : sizeof address->sun_path - 1;
  std::memcpy(address->sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

// Waits until the socket is readable; false on `stop` or when the time is over.
bool readable(int socket, const std::function<bool()> &stop, int64_t deadline) {
  while (!stop() && now_ms() < deadline) {
    pollfd ready{socket, POLLIN, 0};
    if (poll(&ready, 1, kSliceMs) > 0) return true;
  }
  return false;
}

bool send_fd(int socket, int fd) {
  char byte = 1;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// The descriptor, or -1.
int receive_fd(int socket) {
  char byte;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

bool same_user(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// What a client says: the secret and its rank. False if it is no client of ours, or too slow.
bool introduced(int socket, const std::string &secret, const std::function<bool()> &stop, int64_t deadline, uint32_t *rank) {
  std::string said;
  const size_t size = secret.size() + sizeof *rank;
  while (said.size() < size) {
    char part[64];
    if (!readable(socket, stop, deadline)) return false;
    const ssize_t n = recv(socket, part, std::min(sizeof part, size - said.size()), MSG_DONTWAIT);
    if (n <= 0) return false;
    said.append(part, static_cast<size_t>(n));
  }
  std::memcpy(rank, said.data() + secret.size(), sizeof *rank);
  return said.compare(0, secret.size(), secret) == 0;
}

// A server with a full queue makes its clients try again.
bool connect_to(int socket, const sockaddr_un &address, socklen_t size, const std::function<bool()> &stop, int64_t deadline) {
  while (connect(socket, reinterpret_cast<const sockaddr *>(&address), size) != 0) {
    if ((errno != EAGAIN && errno != EINTR) || stop() || now_ms() > deadline) return false;
    poll(nullptr, 0, kSliceMs);
  }
  return true;
}

}  // namespace

FdServer::~FdServer() {
  if (socket_ >= 0) close(socket_);
}

Status FdServer::listen(const std::string &name) {
  socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = abstract_address(name, &address);
  if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr *>(&address), size) != 0 || ::listen(socket_, 1024) != 0)
    return fail_errno("cannot open a local socket", errno);
  return {};
}

Status FdServer::serve(int fd, const std::string &secret, const std::vector<uint64_t> &owners, uint32_t self, double seconds,
                       const std::function<bool()> &stop) {
  const int64_t deadline = now_ms() + static_cast<int64_t>(seconds * 1000);
  std::set<uint64_t> awaited(owners.begin(), owners.end());
  awaited.erase(owners[self]);
  while (!awaited.empty()) {
    if (!readable(socket_, stop, deadline)) {
      if (stop()) return fail(ncclRemoteError, "a rank left while memory was shared");
      std::vector<uint32_t> missing;
      for (uint32_t r = 0; r < owners.size(); ++r)
        if (awaited.count(owners[r]) != 0) missing.push_back(r);
      return fail(ncclSystemError, "%s", too_late(missing, "fetch the shared memory", seconds).c_str());
    }
    const int client = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    uint32_t rank = 0;
    const bool known = same_user(client) && introduced(client, secret, stop, std::min(deadline, now_ms() + kClientMs), &rank);
    if (known && rank < owners.size() && send_fd(client, fd)) awaited.erase(owners[rank]);
    close(client);
  }
  return {};
}

Status fetch_fd(const std::string &name, const std::string &secret, uint32_t rank, double seconds,
                const std::function<bool()> &stop, int *fd) {
  // Not blocking: rank 0 may be stopped.
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (server < 0) return fail_errno("cannot open a local socket", errno);
  sockaddr_un address;
  const socklen_t size = abstract_address(name, &address);
  const int64_t deadline = now_ms() + static_cast<int64_t>(seconds * 1000);
  const std::string words = secret + std::string(reinterpret_cast<const char *>(&rank), sizeof rank);
  *fd = -1;
  int error = 0;
  if (!connect_to(server, address, size, stop, deadline))
    error = errno;
  else if (send(server, words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size()) &&
           readable(server, stop, deadline))
    *fd = receive_fd(server);
  close(server);
  if (*fd >= 0) return {};
  if (now_ms() >= deadline) return fail(ncclSystemError, "%s", too_late({0}, "hand out its shared memory", seconds).c_str());
  return fail(ncclSystemError, "rank 0's shared memory is out of reach%s%s (are all ranks on one machine, in one container?)",
              error != 0 ? ": " : "", error != 0 ? fail_errno("connect", error).text().c_str() : "");
}

}  // namespace collc
