#include "bootstrap/exchange_fd.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>

#include "base/random.h"
#include "bootstrap/greeting.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/sockets.h"
#include "bootstrap/unique_id.h"

namespace collc {
namespace {

constexpr int kSliceMs = 20;
constexpr int kRefused = -2;

// Waits until the socket is readable. Returns false if `stop` returns true or the deadline has passed.
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

// Returns the descriptor; kRefused if the server has closed the connection; -1 on failure, with the cause in `error`. After a
// failure the descriptor is lost, and the server no longer waits for this process.
int receive_fd(int socket, int *error) {
  char byte;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  const ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received == 0 || (received < 0 && (errno == ECONNRESET || errno == EINTR))) return kRefused;
  *error = received < 0 ? errno : EMFILE;  // a message without a descriptor: the kernel could not give this process another one
  if (received < 0) return -1;
  const cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

// The result of one attempt to fetch the descriptor; after kAgain the caller tries again.
enum class Attempt { kDone, kAgain, kFailed };

Attempt fetch_once(const Address &address, uint32_t owner, const std::string &secret, const RankHello &hello,
                   const std::function<bool()> &stop, int64_t deadline, int *fd, Status *status) {
  const Descriptor server = make_socket(AF_UNIX);
  if (!server) {
    *status = fail_errno("cannot open a local socket", errno);
    return Attempt::kFailed;
  }
  if (connect(server.get(), address.get(), address.size) != 0) {
    if (errno == EAGAIN || errno == EINTR) return Attempt::kAgain;  // the queue of the server is full
    *status = fail_errno(
        format("rank %u's shared memory is out of reach (are all ranks on one machine, in one container?)", owner), errno);
    return Attempt::kFailed;
  }
  uid_t user = 0;
  if (!peer_user(server.get(), &user) || user != geteuid()) {
    *status =
        fail(ncclSystemError, "rank %u runs as another user or has ended: only processes of one user share memory", owner);
    return Attempt::kFailed;
  }
  Greeting greeting;
  Greeting::Step step = greeting.start(server.get(), secret, hello);
  while (step == Greeting::Step::kWaits && readable(server.get(), stop, deadline)) step = greeting.advance(server.get());
  if (step != Greeting::Step::kProved) return Attempt::kAgain;
  if (!readable(server.get(), stop, deadline)) return Attempt::kAgain;
  int error = 0;
  *fd = receive_fd(server.get(), &error);
  if (*fd >= 0) return Attempt::kDone;
  if (*fd == kRefused) return Attempt::kAgain;
  *status = fail_errno(format("cannot take rank %u's shared memory", owner), error);
  return Attempt::kFailed;
}

}  // namespace

Status name_socket(SocketName *name) {
  unsigned char random[16] = {};
  COLLC_RETURN_IF_FAILED(random_bytes(random, sizeof random));
  std::snprintf(name->text, sizeof name->text, "collc-%s", hex_of(random, sizeof random).c_str());
  return {};
}

Status FdServer::listen(const std::string &name) {
  Descriptor listening;
  COLLC_RETURN_IF_FAILED(listen_at(local_address(name), &listening));
  acceptor_ = std::make_unique<Acceptor>(std::move(listening), sizeof(RankHello), true);
  return {};
}

Status FdServer::serve(int fd, const std::string &secret, const std::vector<uint64_t> &owners, uint32_t self, double seconds,
                       const std::function<bool()> &stop) {
  const int64_t deadline = now_ms() + static_cast<int64_t>(seconds * 1000);
  std::set<uint64_t> awaited(owners.begin(), owners.end());
  awaited.erase(owners[self]);
  const Acceptor::Owner owner = {[&secret](const unsigned char *) { return secret; },
                                 [&](Descriptor client, const unsigned char *words) {
                                   RankHello hello;
                                   std::memcpy(&hello, words, sizeof hello);
                                   if (hello.rank < owners.size() && send_fd(client.get(), fd))
                                     awaited.erase(owners[hello.rank]);
                                 }};
  while (!awaited.empty()) {
    if (stop()) return fail(ncclRemoteError, "a rank left while memory was shared");
    if (now_ms() >= deadline) {
      std::vector<uint32_t> missing;
      for (uint32_t r = 0; r < owners.size(); ++r)
        if (awaited.count(owners[r]) != 0) missing.push_back(r);
      return fail(ncclSystemError, "%s", too_late(missing, "fetch the shared memory", seconds).c_str());
    }
    std::vector<pollfd> polled;
    acceptor_->add_to(&polled);
    if (poll(polled.data(), polled.size(), kSliceMs) < 0)
      for (pollfd &one : polled) one.revents = 0;
    const pollfd *at = polled.data();
    acceptor_->handle_events(&at, owner);
  }
  return {};
}

Status fetch_fd(const std::string &name, uint32_t owner, const std::string &secret, uint32_t rank, double seconds,
                const std::function<bool()> &stop, int *fd) {
  const Address address = local_address(name);
  const int64_t deadline = now_ms() + static_cast<int64_t>(seconds * 1000);
  *fd = -1;
  Status status;
  for (;;) {
    switch (fetch_once(address, owner, secret, {rank}, stop, deadline, fd, &status)) {
      case Attempt::kDone:
        return {};
      case Attempt::kFailed:
        return status;
      case Attempt::kAgain:
        break;
    }
    if (now_ms() >= deadline)
      return fail(ncclSystemError, "%s", too_late({owner}, "hand out its shared memory", seconds).c_str());
    if (stop()) return fail(ncclRemoteError, "a rank left while memory was shared");
    poll(nullptr, 0, 1);
  }
}

}  // namespace collc
