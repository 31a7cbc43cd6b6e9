// Another process repeats the bytes by which a process proved itself to a socket that passes a descriptor on: it gets no
// descriptor, and the socket continues to wait for the expected processes.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "bootstrap/exchange_fd.h"
#include "bootstrap/sockets.h"

using namespace collc;

namespace {

constexpr double kSeconds = 60;
const std::string kSecret = "a secret of the job";

void require(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::_Exit(1);
}

bool never() { return false; }

std::string new_name() {
  SocketName name = {};
  require(name_socket(&name).ok(), "a name");
  return name.text;
}

int connect_to(const std::string &name) {
  const Address address = local_address(name);
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  require(made >= 0 && connect(made, address.get(), address.size) == 0, "a connection");
  return made;
}

// Passes one connection on to `server`, with the descriptor that comes back; returns what the caller said.
std::string relay(const Descriptor &listening, const std::string &server) {
  const int caller = accept(listening.get(), nullptr, nullptr), there = connect_to(server);
  require(caller >= 0, "a caller");
  std::string said;
  char data[256];
  const auto pass = [&](size_t bytes) {
    for (size_t got = 0; got < bytes;) {
      const ssize_t n = recv(caller, data, bytes - got, 0);
      require(n > 0 && send(there, data, static_cast<size_t>(n), 0) == n, "what the caller says");
      said.append(data, static_cast<size_t>(n));
      got += static_cast<size_t>(n);
    }
  };
  pass(hello_bytes(sizeof(RankHello)));
  const ssize_t n = recv(there, data, sizeof(Challenge), MSG_WAITALL);
  require(n == sizeof(Challenge) && send(caller, data, sizeof(Challenge), 0) == n, "the challenge");
  pass(sizeof(Proof));
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  iovec part{data, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  require(recvmsg(there, &message, 0) == 1 && sendmsg(caller, &message, 0) == 1, "the descriptor");
  close(caller);
  close(there);
  return said;
}

// Sends the first bytes of a recorded conversation; returns the number of bytes that come back before the connection ends.
size_t say_again(const std::string &server, const std::string &said, size_t bytes) {
  const int there = connect_to(server);
  require(send(there, said.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes), "the same words");
  shutdown(there, SHUT_WR);  // so that the server need not wait for more
  size_t heard = 0;
  for (char data[256];;) {
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    iovec part{data, sizeof data};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    const ssize_t n = recvmsg(there, &message, 0);
    require(CMSG_FIRSTHDR(&message) == nullptr || n <= 0, "no descriptor comes");
    if (n <= 0) break;
    heard += static_cast<size_t>(n);
  }
  close(there);
  return heard;
}

}  // namespace

int main() {
  int pipes[2];
  require(pipe(pipes) == 0, "a pipe");
  const std::string name = new_name(), between = new_name();
  FdServer server;
  require(server.listen(name).ok(), "a server");
  Descriptor listening;
  require(listen_at(local_address(between), &listening).ok(), "a relay");
  require(fcntl(listening.get(), F_SETFL, 0) == 0, "a relay that waits");
  Status served;
  std::thread serving([&] { served = server.serve(pipes[0], kSecret, {1, 2, 3}, 0, kSeconds, never); });
  std::string said;
  std::thread relaying([&] { said = relay(listening, name); });
  int fetched = -1;
  require(fetch_fd(between, 0, kSecret, 1, kSeconds, never, &fetched).ok() && fetched >= 0, "rank 1 gets it");
  relaying.join();
  require(say_again(name, said, said.size()) == sizeof(Challenge), "hello and answer bring a challenge alone");
  require(say_again(name, said, said.size() - sizeof(Proof)) <= sizeof(Challenge), "so does the hello");
  require(fetch_fd(name, 0, kSecret, 2, kSeconds, never, &fetched).ok() && fetched >= 0, "rank 2 gets it");
  serving.join();
  require(served.ok(), "and the server has nobody left to wait for");
  std::puts("right");
  return 0;
}
