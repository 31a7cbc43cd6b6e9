// The engine of plain sockets: who meets whom, and the proofs before anything else is read.
//
// A machine connects to those before it and accepts those behind it. Each machine's address contains a random challenge, which
// travels over the rendezvous, where only ranks are. Who connects proves at once that it knows the communicator's secret and
// the challenge of whom it calls; the answer proves the same the other way. A stranger can therefore do no more than occupy one
// of the seats of an Acceptor for five seconds. A proof holds for one attempt to connect and is refused the second time.
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/sockets.h"
#include "wire/proof.h"
#include "wire/tcp_connection.h"

namespace collc {
namespace {

constexpr char kMagic[8] = {'c', 'o', 'l', 'l', 'c', 'w', 'r', '1'};
constexpr int kSliceMs = 20;  // how often the meeting looks whether it should stop
constexpr int64_t kPauseMs = 30;  // between attempts

// Where a machine listens, and what callers prove themselves on.
struct TcpAddress {
  Id place;  // family, address, scope and port alone
  unsigned char challenge[32];
  char host[64];
  char interface[IFNAMSIZ];
  char engine[8];
};

// The first message on a connection, and the only one that a stranger can send.
struct TcpHello {
  char magic[8];
  uint32_t from, to;
  uint64_t attempt;  // from 1; the acceptor takes none twice
  unsigned char proof[sizeof(Proof)];
};

// Of one direction: `says` tells callers and acceptors apart.
Proof proof_of(const WireMeeting &meeting, const char *says, const TcpAddress &challenger, const TcpHello &hello) {
  Bytes message(says, says + std::strlen(says));
  message.insert(message.end(), std::begin(challenger.challenge), std::end(challenger.challenge));
  const auto *const words = reinterpret_cast<const unsigned char *>(&hello);
  message.insert(message.end(), words, words + offsetof(TcpHello, proof));
  return prove(meeting.secret, message);
}

// One machine that this one calls.
struct Caller {
  uint32_t to = 0;
  Descriptor fd;
  uint64_t attempt = 0;
  int64_t since_ms = 0;  // of the end of the last attempt
  bool told = false;  // the hello has been sent
  Bytes answer;
};

class TcpMeeting {
 public:
  TcpMeeting(const WireMeeting &meeting, Acceptor &acceptor, std::vector<std::unique_ptr<WireConnection>> &made)
      : meeting_(meeting), acceptor_(acceptor), made_(made), attempts_(meeting.addresses.size()) {}

  Status run() {
    COLLC_RETURN_IF_FAILED(read_addresses());
    made_.clear();
    made_.resize(addresses_.size());
    std::vector<Caller> callers(meeting_.self);
    for (uint32_t to = 0; to < meeting_.self; ++to) callers[to].to = to;
    const int64_t deadline = now_ms() + static_cast<int64_t>(meeting_.seconds * 1000);
    while (!complete()) {
      if (meeting_.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
      if (now_ms() >= deadline) return too_late_to_meet();
      std::vector<pollfd> polled;
      acceptor_.add_to(&polled);
      const size_t accepting = polled.size();
      for (Caller &caller : callers) {
        prepare(caller);
        polled.push_back({caller.fd.get(), static_cast<short>(caller.told ? POLLIN : POLLOUT), 0});
      }
      if (poll(polled.data(), polled.size(), kSliceMs) < 0)
        for (pollfd &one : polled) one.revents = 0;
      const pollfd *at = polled.data();
      acceptor_.handle_events(&at, [this](Descriptor client, const unsigned char *words) { answer(std::move(client), words); });
      for (size_t i = 0; i < callers.size(); ++i)
        if (polled[accepting + i].revents != 0) advance(callers[i]);
    }
    return {};
  }

 private:
  Status read_addresses() {
    for (const Bytes &bytes : meeting_.addresses) {
      if (bytes.size() != sizeof(TcpAddress)) return fail(ncclInternalError, "a machine's address has %zu bytes", bytes.size());
      TcpAddress address;
      std::memcpy(&address, bytes.data(), sizeof address);
      address.host[sizeof address.host - 1] = 0;
      address.interface[sizeof address.interface - 1] = 0;
      address.engine[sizeof address.engine - 1] = 0;
      addresses_.push_back(address);
    }
    return same_engine();
  }

  Status same_engine() const {
    const char *const own = addresses_[meeting_.self].engine;
    for (size_t m = 0; m < addresses_.size(); ++m)
      if (std::strcmp(addresses_[m].engine, own) != 0)
        return fail(ncclInvalidUsage, "%s joins over the engine %s, %s over %s: set COLLC_NET alike",
                    name_of(meeting_.self).c_str(), printable(own).c_str(), name_of(m).c_str(),
                    printable(addresses_[m].engine).c_str());
    return {};
  }

  bool complete() const {
    for (size_t m = 0; m < made_.size(); ++m)
      if (m != meeting_.self && made_[m] == nullptr) return false;
    return true;
  }

  Status too_late_to_meet() const {
    std::string missing;
    for (size_t m = 0; m < made_.size(); ++m)
      if (m != meeting_.self && made_[m] == nullptr) missing += (missing.empty() ? "" : ", ") + name_of(m);
    return fail(ncclSystemError, "no connection after %.0f s from %s with %s%s", meeting_.seconds,
                name_of(meeting_.self).c_str(), missing.c_str(),
                last_.empty() ? ": is a firewall between, or is COLLC_NET wrong?" : (" (" + last_ + ")").c_str());
  }

  std::string name_of(size_t machine) const {
    const TcpAddress &address = addresses_[machine];
    return format("%s at %s (%s)", printable(address.host).c_str(), collc::describe(public_address(address.place)).c_str(),
                  printable(address.interface).c_str());
  }

  // Starts the next attempt of one that has none.
  void prepare(Caller &caller) {
    if (made_[caller.to] != nullptr) return;
    // An attempt has no end of its own: the other may be stopped, and would take the first of two hellos for the only one.
    if (caller.fd) return;
    if (caller.attempt != 0 && now_ms() - caller.since_ms < kPauseMs) return;
    const Address address = public_address(addresses_[caller.to].place);
    caller.fd = make_socket(address.storage.ss_family);
    ++caller.attempt;
    if (!caller.fd) {
      last_ = std::strerror(errno);
      forget(caller);
    } else if (connect(caller.fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) {
      last_ = std::strerror(errno);
      forget(caller);
    }
  }

  void forget(Caller &caller) {
    caller.fd.reset();
    caller.told = false;
    caller.answer.clear();
    caller.since_ms = now_ms();
  }

  void advance(Caller &caller) {
    if (!caller.fd) return;
    if (!caller.told) return tell(caller);
    unsigned char data[sizeof(Proof)];
    const ssize_t n = recv(caller.fd.get(), data, sizeof data - caller.answer.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n <= 0) return forget(caller);
    caller.answer.insert(caller.answer.end(), data, data + n);
    if (caller.answer.size() < sizeof(Proof)) return;
    const Proof expected = proof_of(meeting_, "collc answers", addresses_[meeting_.self], hello_of(caller));
    if (!equal_secrets(expected.data(), caller.answer.data(), expected.size())) {
      last_ = "something else answers there";
      return forget(caller);
    }
    keep(caller.to, std::move(caller.fd));
  }

  void tell(Caller &caller) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(caller.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    TcpHello hello = hello_of(caller);
    const Proof proof = proof_of(meeting_, "collc calls", addresses_[caller.to], hello);
    std::memcpy(hello.proof, proof.data(), proof.size());
    if (error == 0 && send(caller.fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello)) {
      caller.told = true;
      return;
    }
    last_ = std::strerror(error != 0 ? error : errno);
    forget(caller);
  }

  TcpHello hello_of(const Caller &caller) const {
    TcpHello hello = {};
    std::memcpy(hello.magic, kMagic, sizeof kMagic);
    hello.from = meeting_.self;
    hello.to = caller.to;
    hello.attempt = caller.attempt;
    return hello;
  }

  // One that calls: a stranger is dropped without a word.
  void answer(Descriptor client, const unsigned char *words) {
    TcpHello hello;
    std::memcpy(&hello, words, sizeof hello);
    if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0 || hello.to != meeting_.self || hello.from <= meeting_.self ||
        hello.from >= addresses_.size())
      return;
    const Proof expected = proof_of(meeting_, "collc calls", addresses_[meeting_.self], hello);
    if (!equal_secrets(expected.data(), hello.proof, expected.size()) || hello.attempt <= attempts_[hello.from]) return;
    attempts_[hello.from] = hello.attempt;
    const Proof proof = proof_of(meeting_, "collc answers", addresses_[hello.from], hello);
    if (send(client.get(), proof.data(), proof.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(proof.size())) return;
    keep(hello.from, std::move(client));
  }

  void keep(uint32_t machine, Descriptor fd) {
    made_[machine] = std::make_unique<TcpConnection>(std::move(fd), name_of(machine), meeting_.silence);
  }

  const WireMeeting &meeting_;
  Acceptor &acceptor_;
  std::vector<std::unique_ptr<WireConnection>> &made_;
  std::vector<TcpAddress> addresses_;
  std::vector<uint64_t> attempts_;  // the last one of each machine that was answered
  std::string last_;  // why an attempt failed
};

class TcpEngine final : public WireEngine {
 public:
  TcpEngine(std::string interface, const char *above) : interface_(std::move(interface)), above_(above) {}
  const char *name() const override { return "tcp"; }

  Status listen(Bytes *address) override {
    TcpAddress mine = {};
    std::strncpy(mine.engine, above_, sizeof mine.engine - 1);
    COLLC_RETURN_IF_FAILED(random_bytes(mine.challenge, sizeof mine.challenge));
    gethostname(mine.host, sizeof mine.host - 1);
    std::string name;
    COLLC_RETURN_IF_FAILED(choose_public_address(&mine.place, interface_.empty() ? nullptr : interface_.c_str(), &name));
    std::strncpy(mine.interface, name.c_str(), sizeof mine.interface - 1);
    if (mine.place.family == 0) return fail(ncclSystemError, "no network interface is up: other machines are out of reach");
    Descriptor socket;
    COLLC_RETURN_IF_FAILED(listen_at(public_address(mine.place), &socket));
    sockaddr_storage bound = {};
    socklen_t size = sizeof bound;
    if (getsockname(socket.get(), reinterpret_cast<sockaddr *>(&bound), &size) != 0) return fail_errno("cannot listen", errno);
    mine.place.port = mine.place.family == AF_INET6 ? reinterpret_cast<sockaddr_in6 &>(bound).sin6_port
                                                    : reinterpret_cast<sockaddr_in &>(bound).sin_port;
    acceptor_ = std::make_unique<Acceptor>(std::move(socket), sizeof(TcpHello), false);
    log(LogLevel::kInfo, "%s: waiting for other machines on %s (%s)", above_, describe(public_address(mine.place)).c_str(),
        mine.interface);
    *address = Bytes(reinterpret_cast<const unsigned char *>(&mine), reinterpret_cast<const unsigned char *>(&mine + 1));
    return {};
  }

  Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *made) override {
    const Status status = TcpMeeting(meeting, *acceptor_, *made).run();
    acceptor_.reset();
    return status;
  }

 private:
  std::string interface_;
  const char *above_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace

std::unique_ptr<WireEngine> make_tcp_engine(const std::string &interface, const char *above) {
  return std::make_unique<TcpEngine>(interface, above);
}

}  // namespace collc
