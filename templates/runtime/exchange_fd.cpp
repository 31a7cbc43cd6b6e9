#include "exchange_fd.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

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

bool knows(int socket, const std::string &secret, const std::function<bool()> &stop) {
  std::string said;
  const int64_t deadline = now_ms() + kClientMs;
  while (said.size() < secret.size()) {
    char part[64];
    const size_t most = std::min(sizeof part, secret.size() - said.size());
    if (!readable(socket, stop, deadline)) return false;
    const ssize_t n = recv(socket, part, most, MSG_DONTWAIT);
    if (n <= 0) return false;
    said.append(part, static_cast<size_t>(n));
  }
  return said == secret;
}

}  // namespace

FdServer::~FdServer() {
  if (socket_ >= 0) close(socket_);
}

Status FdServer::listen(const std::string &name) {
  socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = abstract_address(name, &address);
  if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr *>(&address), size) != 0 || ::listen(socket_, 128) != 0)
    return fail_errno("cannot open a local socket", errno);
  return {};
}

Status FdServer::serve(int fd, const std::string &secret, uint32_t clients, const std::function<bool()> &stop) {
  const int64_t never = INT64_MAX;
  while (clients > 0) {
    if (!readable(socket_, stop, never)) return fail(ncclRemoteError, "a rank left while memory was shared");
    const int client = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    if (same_user(client) && knows(client, secret, stop) && send_fd(client, fd)) --clients;
    close(client);
  }
  return {};
}

Status fetch_fd(const std::string &name, const std::string &secret, const std::function<bool()> &stop, int *fd) {
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (server < 0) return fail_errno("cannot open a local socket", errno);
  sockaddr_un address;
  const socklen_t size = abstract_address(name, &address);
  *fd = -1;
  int error = 0;
  if (connect(server, reinterpret_cast<sockaddr *>(&address), size) != 0)
    error = errno;
  else if (send(server, secret.data(), secret.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(secret.size()) &&
           readable(server, stop, INT64_MAX))
    *fd = receive_fd(server);
  close(server);
  if (*fd >= 0) return {};
  return fail(ncclSystemError, "rank 0's shared memory is out of reach%s%s (are all ranks on one machine, in one container?)",
              error != 0 ? ": " : "", error != 0 ? fail_errno("connect", error).text().c_str() : "");
}

}  // namespace collc
