#include "bootstrap/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/environment.h"
#include "base/machine.h"
#include "bootstrap/greeting.h"

namespace collc {
namespace {

constexpr int kLookMs = 50;            // interval between two polls of `stop`
constexpr int64_t kListenerMs = 5000;   // added to each wait: the listener knows which rank is late, and should report first
constexpr int64_t kEchoMs = 2000;       // how long give_up() waits until the listener has notified the others
// the first attempt to connect over a network ends after this time; the limit doubles with each attempt
constexpr int64_t kFirstReachMs = 500;
constexpr int64_t kMostReachMs = 4000;
constexpr double kDeclineSeconds = 5;

Status lost() { return fail(ncclRemoteError, "the bootstrap lost its connection: the process that made the id has gone"); }

// Connects a local socket and returns 0 or an errno. If the backlog is full, waits in it for up to kLookMs, because a queue
// is fairer than retries.
int connect_in_line(int socket, const Address &address) {
  if (connect(socket, address.get(), address.size) == 0) return 0;
  if (errno != EAGAIN) return errno;
  const int flags = fcntl(socket, F_GETFL);
  const timeval slice{0, 1000 * kLookMs};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
  fcntl(socket, F_SETFL, flags & ~O_NONBLOCK);
  const int error = connect(socket, address.get(), address.size) == 0 ? 0 : errno;
  fcntl(socket, F_SETFL, flags);
  return error;
}

// Sleeps for a random time, so that rejected callers do not all retry at once.
void sleep_randomly(int attempts) {
  unsigned char random = 0;
  random_bytes(&random, sizeof random).ok();
  poll(nullptr, 0, 1 + random % std::clamp(attempts, 1, 20));
}

}  // namespace

Status Rendezvous::join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, double seconds) {
  id_ = unpack(id);
  nranks_ = nranks;
  seconds_ = seconds;
  start_waiting();
  const Hello hello = {kHelloMagic, id_.number, rank, nranks};
  std::vector<Address> addresses;
  const bool same_machine = id_.machine == this_machine();
  if (same_machine && same_network(id_.network, this_network())) addresses.push_back(local_address(listener_name(id_)));
  if (id_.family != 0) addresses.push_back(public_address(id_));
  Status status = fail(ncclInvalidUsage,
                       "the id was made %s than this one, and its process listens on its own machine only: "
                       "set COLLC_SOCKET_IFNAME there",
                       same_machine ? "in a container with another network" : "on another machine");
  for (const Address &address : addresses) {
    at_ = address.storage.ss_family == AF_UNIX ? "" : ", at " + describe(address) + ",";
    for (;;) {
      const Answer answer = handshake(address, hello, &status);
      if (answer == Answer::kAdmitted) return {};
      socket_.reset();
      if (answer == Answer::kFailed) return status;
      if (answer == Answer::kElsewhere) break;
      COLLC_RETURN_IF_FAILED(back_off());
    }
  }
  return status;
}

// Makes one attempt to connect and to be admitted.
Rendezvous::Answer Rendezvous::handshake(const Address &address, const Hello &hello, Status *status) {
  socket_ = make_socket(address.storage.ss_family);
  if (!socket_) {
    *status = fail_errno("cannot open a socket", errno);
    return Answer::kFailed;
  }
  const Answer reached = reach(address, status);
  if (reached != Answer::kAdmitted) return reached;
  const Answer greeted = greet(hello, status);
  if (greeted != Answer::kAdmitted) return greeted;
  Frame frame = {};
  Bytes body;
  size_t received = 0;
  while (received < sizeof frame) {
    const ssize_t n = recv(socket_.get(), reinterpret_cast<char *>(&frame) + received, sizeof frame - received, 0);
    if (n > 0) {
      received += static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      return Answer::kAgain;
    } else if (!(*status = wait(POLLIN)).ok()) {
      return Answer::kFailed;
    }
  }
  told_ = frame.result != kAdmitted;
  if (frame.result == kAdmitted) return Answer::kAdmitted;
  *status = receive_body(frame, &body);
  return Answer::kFailed;
}

// Proves to the listener that this rank knows the secret, and checks the listener's proof. Returns kAdmitted if both have
// succeeded.
Rendezvous::Answer Rendezvous::greet(const Hello &hello, Status *status) {
  Greeting greeting;
  Greeting::Step step = greeting.start(socket_.get(), hex_of(id_.secret, kSecretBytes), hello);
  while (step == Greeting::Step::kWaits) {
    if (!(*status = wait(POLLIN)).ok()) return Answer::kFailed;
    step = greeting.advance(socket_.get());
  }
  if (step == Greeting::Step::kProved) return Answer::kAdmitted;
  if (step == Greeting::Step::kClosed) return Answer::kAgain;
  if (step == Greeting::Step::kFalse)
    *status = fail(ncclRemoteError, "the process that made the id has gone: another one listens at its place");
  else
    *status = fail(ncclRemoteError,
                   "the process that made the id refused it: its communicator was made already or has failed, or "
                   "the id is damaged");
  return Answer::kFailed;
}

// Connects the socket. Returns kAdmitted if it is connected.
Rendezvous::Answer Rendezvous::reach(const Address &address, Status *status) {
  const bool local = address.storage.ss_family == AF_UNIX;
  int error = 0;
  if (local)
    error = connect_in_line(socket_.get(), address);
  else if (connect(socket_.get(), address.get(), address.size) != 0)
    error = errno;
  if (error == EINPROGRESS) {
    // The kernel retransmits a lost request late and with growing delays, so a new attempt is faster.
    const int64_t patience = std::min(kFirstReachMs << std::min(attempts_, 10), kMostReachMs);
    bool ready = false;
    *status = wait(POLLOUT, now_ms() + patience, &ready);
    if (!status->ok()) return Answer::kFailed;
    if (!ready) return Answer::kAgain;
    socklen_t size = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == EAGAIN || error == EINTR || error == ECONNRESET || error == ETIMEDOUT) return Answer::kAgain;
  if (error != 0) {
    *status = fail_errno("cannot reach the process that made the id, at " + describe(address) + " (has it ended?)", error);
    return Answer::kElsewhere;
  }
  if (!local) return Answer::kAdmitted;
  // Another user's process may have taken the name of a listener that has ended; it must not receive the hello.
  uid_t user = 0;
  if (peer_user(socket_.get(), &user) && (user == geteuid() || user == 0 || user == id_.user)) return Answer::kAdmitted;
  *status = fail(ncclRemoteError, "the process that made the id has gone: another user listens at its place");
  return Answer::kFailed;
}

Status Rendezvous::exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &failure) {
  if (!failure.ok()) {
    give_up(failure);
    return failure;
  }
  start_waiting();
  const Frame frame{static_cast<uint32_t>(message.size()), 0};
  const auto *head = reinterpret_cast<const unsigned char *>(&frame);
  Bytes whole(head, head + sizeof frame);
  whole.insert(whole.end(), message.begin(), message.end());
  const Status sent = send_all(whole.data(), whole.size());
  Bytes body;
  // reads the answer even after a failed send, because it says why the listener has closed the connection
  const Status answered = receive(&body);
  COLLC_RETURN_IF_FAILED(answered);
  COLLC_RETURN_IF_FAILED(sent);
  all->clear();
  for (size_t at = 0; at + sizeof(uint32_t) <= body.size();) {
    uint32_t size;
    std::memcpy(&size, body.data() + at, sizeof size);
    at += sizeof size;
    if (size > body.size() - at) break;
    all->emplace_back(body.begin() + static_cast<ptrdiff_t>(at), body.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
  }
  if (all->size() != nranks_) return fail(ncclInternalError, "the bootstrap received an invalid message");
  return {};
}

void Rendezvous::give_up(const Status &failure) {
  if (told_) return;
  told_ = true;
  deadline_ = now_ms() + kEchoMs;
  const std::string words = failure.text();
  const Frame frame{static_cast<uint32_t>(words.size()), static_cast<uint32_t>(failure.code())};
  const auto *head = reinterpret_cast<const unsigned char *>(&frame);
  Bytes whole(head, head + sizeof frame);
  whole.insert(whole.end(), words.begin(), words.end());
  if (!send_all(whole.data(), whole.size()).ok()) return;
  // The listener answers this rank last, when it has notified all others. Results of earlier rounds may arrive before its
  // answer.
  Bytes body;
  while (receive(&body).ok()) continue;
}

void Rendezvous::leave() {
  told_ = true;
  const Frame frame{0, kGoodbye};
  send_all(&frame, sizeof frame).ok();  // if the listener has gone, there is nobody to notify
}

Status Rendezvous::verdict() {
  if (stop_()) return fail(ncclInternalError, "the communicator was aborted while it was made");
  start_waiting();
  Bytes body;
  COLLC_RETURN_IF_FAILED(receive(&body));
  return fail(ncclInternalError, "the bootstrap received an invalid message");
}

Status Rendezvous::receive(Bytes *body) {
  Frame frame;
  COLLC_RETURN_IF_FAILED(receive_all(&frame, sizeof frame));
  return receive_body(frame, body);
}

Status Rendezvous::receive_body(const Frame &frame, Bytes *body) {
  if (frame.result >= ncclNumResults || frame.size > uint64_t{kMostMessage} * std::max(1u, nranks_))
    return fail(ncclInternalError, "the bootstrap received an invalid message");
  body->resize(frame.size);
  COLLC_RETURN_IF_FAILED(receive_all(body->data(), body->size()));
  if (frame.result == 0) return {};
  told_ = true;
  return Status(static_cast<ncclResult_t>(frame.result), std::string(body->begin(), body->end()));
}

bool Rendezvous::connected() {
  char byte;
  const ssize_t n = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 ? false : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

void Rendezvous::start_waiting() { deadline_ = now_ms() + static_cast<int64_t>(seconds_ * 1000) + kListenerMs; }

Status Rendezvous::check_timeout() {
  if (stop_()) return fail(ncclInternalError, "the communicator was aborted while it was made");
  if (now_ms() <= deadline_) return {};
  return fail(ncclSystemError,
              "the process that made the id%s did not answer within %g s (COLLC_BOOTSTRAP_TIMEOUT): stopped, %sor %s?",
              at_.c_str(), seconds_, at_.empty() ? "" : "out of reach, ", attempts_ > 0 ? "flooded with connections" : "stuck");
}

Status Rendezvous::back_off() {
  sleep_randomly(++attempts_);
  return check_timeout();
}

Status Rendezvous::wait(short events, int64_t until, bool *ready) {
  for (;;) {
    COLLC_RETURN_IF_FAILED(check_timeout());
    pollfd polled{socket_.get(), events, 0};
    const bool there = poll(&polled, 1, kLookMs) > 0;
    if (ready != nullptr) *ready = there;
    if (there || now_ms() >= until) return {};
  }
}

Status Rendezvous::send_all(const void *data, size_t size) {
  const char *at = static_cast<const char *>(data);
  while (size > 0) {
    const ssize_t n = send(socket_.get(), at, size, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      COLLC_RETURN_IF_FAILED(wait(POLLOUT));
    } else if (errno != EINTR) {
      return lost();
    }
  }
  return {};
}

Status Rendezvous::receive_all(void *data, size_t size) {
  char *at = static_cast<char *>(data);
  while (size > 0) {
    const ssize_t n = recv(socket_.get(), at, size, 0);
    if (n > 0) {
      at += n;
      size -= static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      COLLC_RETURN_IF_FAILED(wait(POLLIN));
    } else if (n == 0 || errno != EINTR) {
      told_ = true;  // the connection is lost, so nobody can be notified
      return lost();
    }
  }
  return {};
}

void decline(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const Status &reason) {
  Rendezvous rendezvous([] { return false; });
  if (rendezvous.join(id, nranks, rank, kDeclineSeconds).ok()) rendezvous.give_up(reason);
}

Status bootstrap_seconds(double *seconds) { return read_number("COLLC_BOOTSTRAP_TIMEOUT", 0.1, 1e6, 600, seconds); }

std::string too_late(const std::vector<uint32_t> &ranks, const char *what, double seconds) {
  return format("%s %s did not %s within %g s (COLLC_BOOTSTRAP_TIMEOUT): stopped, or stuck?",
                ranks.size() == 1 ? "rank" : "ranks", list_ranks(ranks).c_str(), what, seconds);
}

}  // namespace collc
