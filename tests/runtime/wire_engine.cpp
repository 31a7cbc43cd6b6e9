// Two machines that connect over the engine of COLLC_NET while strangers connect to their listeners.
//   wire_engine proof KEY MESSAGE   the proof in hex
//   wire_engine meet STRANGERS      STRANGERS connections of each kind reach machine 0 before machine 1 does; then messages pass
//   wire_engine hca LIST PORT...    the ports that pass a list of NCCL_IB_HCA
//   wire_engine hcas PORT...        the same for each line of the input, in a line each
//   wire_engine placed SYS LIST     the interfaces that a list names, with their places, by a folder like /sys
//   wire_engine wrong               machine 1 has another secret: both end with an error
//   wire_engine many MESSAGES       MESSAGES messages each way
//   wire_engine plain MACHINE       this one of two encrypts nothing, the other one does: no message arrives
//   wire_engine relay               a relay reads all bytes: do they contain the plain text of the messages?
//   wire_engine spare HOW           nobody answers where the rail should be: there is a spare, or "none"; calls of the rail are "refused",
//                                   or taken by a stranger that is "silent"
//   wire_engine alike HOW           two machines, one with more announced interfaces: the rail is the "usual" interface of both, or
//                                   "another" one with a spare beside it that nobody needs
//   wire_engine late                an answer that came before a caller looked, and a caller that ends its attempt
//   wire_engine together            the calls of a rail and of the spare become writable in one poll
//   wire_engine pairs               which interfaces of machines become rails
//   wire_engine near NET INTERFACE...  the cores near interfaces, of cores 0 to 7, by a folder like /sys/class/net
//   wire_engine far SYS INTERFACE BUS...  how far an interface is from GPUs, with a folder like /sys
//   wire_engine card SYS BUS NAME      the interfaces of a card of the library's topology; BUS: 0, or "0000:5e:00.1"
//   wire_engine cards SYS              the network interfaces of RDMA ports
//   wire_engine open                makes an engine, or says why it cannot
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "bootstrap/unique_id.h"
#include "wire/nics.h"
#include "wire/hca_filter.h"
#include "base/proof.h"
#include "wire/messages.h"
#include "wire/near_cores.h"
#include "wire/tcp_peers.h"
#include "wire/wire.h"

using namespace collc;

namespace {

thread_local bool holds_writable = false;  // until two of those that are polled by this thread can be written to
std::atomic<bool> writable_at_once{false};

}  // namespace

// In the place of the system's.
extern "C" int poll(pollfd *polled, nfds_t count, int timeout) {
  const timespec most = {timeout / 1000, timeout % 1000 * 1000000L};
  int found = ppoll(polled, count, timeout < 0 ? nullptr : &most, nullptr);
  if (!holds_writable || found <= 0) return found;
  std::vector<pollfd *> writable;
  for (nfds_t i = 0; i < count; ++i)
    if (polled[i].revents == POLLOUT) writable.push_back(polled + i);
  if (writable.size() > 1) {
    holds_writable = false;
    writable_at_once = true;
  } else if (writable.size() == 1) {
    writable[0]->revents = 0;
    --found;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return found;
}

namespace {

void require(bool right, const char *what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::_Exit(1);
}

// One end: its messages have their number as tag, and 0 to 99,999 bytes that follow from it.
struct End : WireSink {
  std::unique_ptr<WireConnection> connection;
  std::map<uint64_t, std::vector<char>> rooms;  // of large messages; they stay, as slots do
  std::vector<char> shared = std::vector<char>(kSmallWireBody);
  uint64_t received = 0, next_place = 0;

  static std::vector<char> body_of(uint64_t number) {
    // Every third one is small.
    return std::vector<char>(number * 7919 % (number % 3 == 0 ? 2500 : 100000), static_cast<char>(number * 31));
  }
  Status place(const WireHead &head, char **body) override {
    require(head.tag >= next_place, "the order of places");
    next_place = head.tag + 1;
    // Small bodies share room.
    if (head.bytes <= kSmallWireBody) {
      *body = shared.data();
      return {};
    }
    *body = rooms.emplace(head.tag, std::vector<char>(head.bytes)).first->second.data();
    return {};
  }
  Status take(const WireHead &head) override {
    const std::vector<char> expected = body_of(received);
    require(head.tag == received && head.bytes == expected.size(), "the order of messages");
    if (head.bytes > kSmallWireBody) {
      require(rooms[head.tag] == expected, "a body");
    } else if (head.bytes != 0) {
      require(std::memcmp(shared.data(), expected.data(), head.bytes) == 0, "a small body");
    }
    ++received;
    return {};
  }
};

sockaddr_in door_of(const Bytes &address) {
  Id place;
  std::memcpy(&place, address.data(), sizeof place);  // an engine's address begins with it
  sockaddr_in door = {};
  door.sin_family = AF_INET;
  door.sin_port = place.port;
  std::memcpy(&door.sin_addr, place.address, 4);
  return door;
}

// Connections that say nothing, too little, too much, or what looks like a hello without a proof.
void knock(const Bytes &address, int count, std::vector<int> *held) {
  const sockaddr_in door = door_of(address);
  const std::string looks_right =
      std::string("collcwr3") + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(8, '\0') + std::string("\1\0\0\0\0\0\0\0", 8);
  const std::string said[] = {"", "collcwr3", std::string(4096, '\xff'), looks_right + std::string(48, '\5')};
  for (const std::string &words : said)
    for (int i = 0; i < count; ++i) {
      const int one = socket(AF_INET, SOCK_STREAM, 0);
      require(one >= 0 && connect(one, reinterpret_cast<const sockaddr *>(&door), sizeof door) == 0, "a stranger's connection");
      if (!words.empty()) static_cast<void>(send(one, words.data(), words.size(), MSG_NOSIGNAL));
      held->push_back(one);
    }
}

void exchange(End &one, End &other, uint64_t messages) {
  std::vector<std::vector<char>> bodies;
  for (uint64_t n = 0; n < messages; ++n) bodies.push_back(End::body_of(n));
  for (End *end : {&one, &other})
    for (uint64_t n = 0; n < messages; ++n)
      end->connection->send({1, 0, n, n, static_cast<uint32_t>(bodies[n].size()), 0}, bodies[n].data());
  const int64_t start = now_ms();
  bool moved = false, ended = false;
  while (one.received < messages || other.received < messages) {
    require(now_ms() - start < 60000, "messages arrive");
    for (End *end : {&one, &other}) require(end->connection->progress(*end, &moved, &ended).ok(), "the connection holds");
  }
  while (!one.connection->drained()) {
    require(now_ms() - start < 60000, "everything is acknowledged");
    require(other.connection->progress(other, &moved, &ended).ok(), "the connection holds");
  }
  // The end of a connection is distinguished from a lost network.
  one.connection.reset();
  while (other.connection->progress(other, &moved, &ended).ok()) require(now_ms() - start < 60000, "the end is seen");
  require(ended, "the end was made by the peer");
}

// Two machines that have met.
struct Pair {
  std::vector<std::unique_ptr<WireConnection>> made[2];
  Status outcomes[2];

  double seconds = 20;

  void meet(std::unique_ptr<WireEngine> (&engines)[2], const std::vector<Bytes> (&addresses)[2]) {
    run(engines, addresses);
    require(outcomes[0].ok() && outcomes[1].ok(), "both have met");
  }

  void run(std::unique_ptr<WireEngine> (&engines)[2], const std::vector<Bytes> (&addresses)[2]) {
    const auto run = [&](uint32_t self) {
      WireMeeting meeting;
      meeting.secret = "the secret of this communicator";
      meeting.self = self;
      meeting.addresses = addresses[self];
      meeting.seconds = seconds;
      meeting.silence = 20;
      meeting.stop = [] { return false; };
      outcomes[self] = engines[self]->meet(meeting, &made[self]);
    };
    std::thread first(run, 0), second(run, 1);
    first.join();
    second.join();
  }
};

int many(int messages) {
  std::unique_ptr<WireEngine> engines[2];
  std::vector<Bytes> addresses(2);
  for (size_t m = 0; m < 2; ++m)
    require(make_engine({}, &engines[m]).ok() && engines[m]->listen(&addresses[m]).ok(), "an engine that listens");
  Pair pair;
  pair.meet(engines, {addresses, addresses});
  End ends[2];
  ends[0].connection = std::move(pair.made[0][1]);
  ends[1].connection = std::move(pair.made[1][0]);
  exchange(ends[0], ends[1], static_cast<uint64_t>(messages));
  std::printf("%d messages each way\n", messages);
  return 0;
}

// A message each way.
void pass_one(Pair &pair, bool rails) {
  End ends[2];
  ends[0].connection = std::move(pair.made[0][1]);
  ends[1].connection = std::move(pair.made[1][0]);
  const std::vector<char> body = End::body_of(0);
  bool moved = false, ended = false;
  for (End &end : ends) {
    require((end.connection->rails() != nullptr) == rails, "the kind of connection");
    end.connection->send({static_cast<uint32_t>(WireKind::kBeat), 0, 0, 0, static_cast<uint32_t>(body.size()), 0}, body.data());
  }
  for (const int64_t start = now_ms(); ends[0].received < 1 || ends[1].received < 1;) {
    require(now_ms() - start < 60000, "messages arrive");
    for (End &end : ends) require(end.connection->progress(end, &moved, &ended).ok(), "the connection holds");
  }
  std::printf("a message each way\n");
}

// Machines that tell a rail where none of them listens, and the spare where they do, or elsewhere too.
int spare(const std::string &how) {
  const int stranger = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  socklen_t size = sizeof there;
  require(bind(stranger, reinterpret_cast<const sockaddr *>(&there), size) == 0 &&
              getsockname(stranger, reinterpret_cast<sockaddr *>(&there), &size) == 0 &&
              (how != "silent" || listen(stranger, 64) == 0),
          "a stranger");
  std::unique_ptr<WireEngine> engines[2];
  std::vector<Bytes> addresses(2);
  for (size_t m = 0; m < 2; ++m) {
    require(make_engine({}, &engines[m]).ok() && engines[m]->listen(&addresses[m]).ok(), "an engine that listens");
    TcpAddress told[2];
    require(addresses[m].size() == sizeof told[0], "one interface");
    std::memcpy(&told[0], addresses[m].data(), sizeof told[0]);
    told[0].source = InterfaceSource::kNic;
    told[1] = told[0];
    told[1].source = InterfaceSource::kSpare;
    told[0].place.port = there.sin_port;
    std::memcpy(told[0].place.address, &there.sin_addr, sizeof there.sin_addr);
    if (how == "none") told[1].place.port = there.sin_port;
    const auto *const words = reinterpret_cast<const unsigned char *>(told);
    addresses[m] = Bytes(words, words + sizeof told);
  }
  Pair pair;
  pair.seconds = how == "none" ? 4 : 60;
  pair.run(engines, {addresses, addresses});
  close(stranger);
  if (how == "none") {
    for (const Status &outcome : pair.outcomes) std::printf("%s\n", outcome.text().c_str());
    return 0;
  }
  require(pair.outcomes[0].ok() && pair.outcomes[1].ok(), "both have met");
  pass_one(pair, true);
  return 0;
}

// Both ends make the same kind of connection, whatever each of them has besides.
int alike(bool usual) {
  std::unique_ptr<WireEngine> engines[2];
  std::vector<Bytes> addresses(2);
  for (size_t m = 0; m < 2; ++m) {
    require(make_engine({}, &engines[m]).ok() && engines[m]->listen(&addresses[m]).ok(), "an engine that listens");
    TcpAddress first;
    std::memcpy(&first, addresses[m].data(), sizeof first);
    first.source = InterfaceSource::kNobody;
    std::vector<TcpAddress> told(m == 0 ? 3 : 1, first);
    if (m == 0) {
      told[1].place.address[0] = 10;
      told[2].source = InterfaceSource::kSpare;
      if (!usual) told[2].interface[0] = 'e';
    }
    const auto *const words = reinterpret_cast<const unsigned char *>(told.data());
    addresses[m] = Bytes(words, words + told.size() * sizeof first);
  }
  Pair pair;
  pair.meet(engines, {addresses, addresses});
  pass_one(pair, !usual);
  return 0;
}

// Somebody who listens where machine 0 should, for a rail and for the spare, and answers nothing.
struct Deaf {
  int door = -1, caller = -1;
  bool told = false;
  sockaddr_in there = {};

  explicit Deaf(in_addr_t address) : door(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    there.sin_family = AF_INET;
    there.sin_addr.s_addr = htonl(address);
    socklen_t size = sizeof there;
    require(bind(door, reinterpret_cast<const sockaddr *>(&there), size) == 0 &&
                getsockname(door, reinterpret_cast<sockaddr *>(&there), &size) == 0,
            "a port");
  }
  void open() const { require(listen(door, 16) == 0, "a door"); }
  // Takes who has come, hears what was said and whether it has ended.
  void look() {
    char data[sizeof(TcpHello)];
    const ssize_t n = caller < 0 ? -1 : recv(caller, data, sizeof data, MSG_DONTWAIT);
    if (n > 0) told = true;
    if (n == 0 || (n < 0 && caller >= 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
      close(caller);
      caller = -1;
      told = false;
    }
    if (caller < 0) caller = accept4(door, nullptr, nullptr, SOCK_NONBLOCK);
  }
};

// The rail is refused until the spare is being called; then both become writable in one poll. One hello at a time is said.
int together() {
  Deaf rail(INADDR_LOOPBACK + 1), spare(INADDR_LOOPBACK);
  spare.open();
  std::vector<Bytes> addresses(2);
  std::unique_ptr<WireEngine> engine;
  require(make_engine({}, &engine).ok() && engine->listen(&addresses[1]).ok(), "an engine that listens");
  for (Bytes &address : addresses) {
    TcpAddress told[2];
    std::memcpy(&told[0], addresses[1].data(), sizeof told[0]);
    told[0].source = InterfaceSource::kNic;
    told[1] = told[0];
    told[1].source = InterfaceSource::kSpare;
    // Else the rail would be the usual interface, and there no spare.
    std::memcpy(told[0].place.address, &rail.there.sin_addr, sizeof rail.there.sin_addr);
    if (&address == &addresses[0]) {
      told[0].place.port = rail.there.sin_port;
      told[1].place.port = spare.there.sin_port;
    }
    const auto *const words = reinterpret_cast<const unsigned char *>(told);
    address = Bytes(words, words + sizeof told);
  }
  WireMeeting meeting;
  meeting.secret = "the secret of this communicator";
  meeting.self = 1;
  meeting.addresses = addresses;
  meeting.seconds = 120;
  meeting.silence = 60;
  std::atomic<bool> over{false};
  meeting.stop = [&over] { return over.load(); };
  std::thread machine([&] {
    holds_writable = true;
    std::vector<std::unique_ptr<WireConnection>> made;
    require(!engine->meet(meeting, &made).ok(), "nobody is met");
  });
  const int64_t start = now_ms();
  for (; spare.caller < 0; spare.look()) require(now_ms() - start < 60000, "the spare is called");
  rail.open();
  bool any = false;
  while (!(any && !rail.told && !spare.told)) {
    require(now_ms() - start < 60000, "a hello, and its end");
    for (Deaf *one : {&rail, &spare}) one->look();
    // One may have ended before the other one was said, and after it was looked at.
    for (Deaf *one : {&rail, &spare})
      if (rail.told && spare.told) one->look();
    require(!(rail.told && spare.told), "one hello at a time");
    any |= rail.told || spare.told;
  }
  require(writable_at_once, "both ways are writable in one poll");
  over = true;
  machine.join();
  std::printf("one hello at a time\n");
  return 0;
}

int late() {
  std::vector<TcpAddress> told(2);
  std::vector<Bytes> addresses;
  TcpListeners listeners;
  for (TcpAddress &one : told) {
    one.place.family = AF_INET;
    one.place.address[0] = 127;
    one.place.address[3] = 1;
    one.streams = 1;
    std::vector<TcpAddress> own = {one};
    if (addresses.empty()) require(listeners.open(&own).ok(), "a door");
    const auto *const words = reinterpret_cast<const unsigned char *>(own.data());
    addresses.emplace_back(words, words + sizeof one);
  }
  const auto party_of = [&addresses](uint32_t self) {
    WireMeeting meeting;
    meeting.self = self;
    meeting.secret = "the secret of this communicator";
    meeting.addresses = addresses;
    auto party = std::make_shared<TcpPeers>();
    require(party->read(meeting, false).ok(), "a party");
    return party;
  };
  listeners.expect(party_of(0));
  // A caller that gives up, when it looks, whatever has not come.
  const auto call = [](TcpConnector &caller, TcpSocket *made) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return caller.call(0, 0, made);
  };
  TcpConnector caller(party_of(1), 0, 0, 0);
  TcpSocket made, visitor;
  const int64_t start = now_ms();
  while (!caller.is_waiting()) {
    require(now_ms() - start < 60000 && !call(caller, &made), "a hello is sent");
  }
  const auto has_news = [&caller] {
    std::vector<pollfd> polled;
    caller.add_to(&polled);
    return poll(polled.data(), 1, 0) == 1;
  };
  for (; !has_news(); listeners.poll_now()) require(now_ms() - start < 60000, "a challenge comes");
  require(!call(caller, &made) && caller.is_waiting(), "the challenge is answered, however late");
  for (; (visitor = listeners.take(1, 0)).attempt == 0; listeners.poll_now())
    require(now_ms() - start < 60000, "the answer comes");
  while (!has_news()) require(now_ms() - start < 60000, "the caller is let in");
  require(call(caller, &made) && made.attempt == visitor.attempt, "which is noticed, however late");
  // An attempt that is over is reset: the end that listens has said nothing yet.
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there = door_of(addresses[0]);
  there.sin_port = 0;
  socklen_t size = sizeof there;
  require(bind(listening, reinterpret_cast<const sockaddr *>(&there), size) == 0 && listen(listening, 4) == 0 &&
              getsockname(listening, reinterpret_cast<sockaddr *>(&there), &size) == 0,
          "somebody who listens");
  told[0].place.port = there.sin_port;
  std::memcpy(addresses[0].data(), &told[0], sizeof told[0]);
  TcpConnector other(party_of(1), 0, 0, 0);
  while (!other.is_waiting()) {
    require(now_ms() - start < 60000 && !call(other, &made), "a hello is sent");
  }
  const int called = accept(listening, nullptr, nullptr);
  other.hang_up();
  char data[2 * sizeof(TcpHello)];
  ssize_t n = 1;
  while (n > 0) n = recv(called, data, sizeof data, 0);
  require(n < 0 && errno == ECONNRESET, "the attempt is reset");
  close(called);
  close(listening);
  std::printf("in time\n");
  return 0;
}

// Everything that comes from a socket within a second, as far as it has a first byte; looks at the doors meanwhile.
std::string heard(int socket, TcpListeners &listeners) {
  std::string words;
  for (const int64_t start = now_ms(); words.empty() && now_ms() - start < 60000;) {
    char data[4096];
    listeners.poll_now();
    const ssize_t n = recv(socket, data, sizeof data, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) break;
    if (n > 0) words.assign(data, static_cast<size_t>(n));
  }
  return words;
}

// A thief between two machines catches a hello before it arrives, and sends it again.
int replay() {
  TcpAddress there = {};
  there.place.family = AF_INET;
  there.place.address[0] = 127;
  there.place.address[3] = 1;
  there.streams = 1;
  std::vector<TcpAddress> own = {there};
  TcpListeners listeners;
  require(listeners.open(&own).ok(), "a door");
  const int between = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place = {};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  require(bind(between, reinterpret_cast<const sockaddr *>(&place), size) == 0 && listen(between, 4) == 0 &&
              getsockname(between, reinterpret_cast<sockaddr *>(&place), &size) == 0,
          "somebody between them");
  const auto party_of = [&](uint32_t self, in_port_t port) {
    WireMeeting meeting;
    meeting.self = self;
    meeting.secret = "the secret of this communicator";
    for (const in_port_t one : {port, in_port_t{0}}) {
      TcpAddress address = own[0];
      address.place.port = one;
      const auto *const words = reinterpret_cast<const unsigned char *>(&address);
      meeting.addresses.emplace_back(words, words + sizeof address);
    }
    auto party = std::make_shared<TcpPeers>();
    require(party->read(meeting, false).ok(), "a party");
    return party;
  };
  listeners.expect(party_of(0, own[0].place.port));
  TcpSocket made, visitor;
  TcpConnector caller(party_of(1, place.sin_port), 0, 0, 0);
  const int64_t start = now_ms();
  while (!caller.is_waiting()) require(now_ms() - start < 60000 && !caller.call(0, 60000, &made), "a hello is sent");
  const int caught = accept(between, nullptr, nullptr);
  const std::string hello = heard(caught, listeners);
  sockaddr_in door = place;
  door.sin_port = own[0].place.port;
  std::vector<int> thieves;
  for (int i = 0; i < 2; ++i) {
    thieves.push_back(socket(AF_INET, SOCK_STREAM, 0));
    require(connect(thieves[i], reinterpret_cast<const sockaddr *>(&door), sizeof door) == 0 &&
                send(thieves[i], hello.data(), hello.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(hello.size()),
            "the hello is sent again");
    require(!heard(thieves[i], listeners).empty(), "the door answers");
    require(listeners.take(1, 0).attempt == 0, "whoever sends it again is not let in");
  }
  const std::string wrong(32, '\5');
  require(send(thieves[0], wrong.data(), wrong.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(wrong.size()), "an answer");
  require(heard(thieves[0], listeners).empty() && listeners.take(1, 0).attempt == 0, "a wrong answer ends its connection");
  for (const int one : {caught, between, thieves[0], thieves[1]}) close(one);
  // The machine itself gets through.
  TcpConnector other(party_of(1, own[0].place.port), 0, 0, caller.attempt());
  for (bool is_let_in = false; !is_let_in || visitor.attempt == 0;) {
    require(now_ms() - start < 60000, "both ends have a connection");
    is_let_in |= other.call(30, 60000, &made);
    listeners.poll_now();
    if (visitor.attempt == 0) visitor = listeners.take(1, 0);
  }
  require(made.attempt == visitor.attempt, "which is one");
  std::printf("let in alone\n");
  return 0;
}

int plain(size_t machine) {
  std::unique_ptr<WireEngine> engines[2];
  std::vector<Bytes> addresses(2);
  for (size_t m = 0; m < 2; ++m) {
    setenv("COLLC_NET_TLS", m == machine ? "0" : "1", 1);
    require(make_engine({}, &engines[m]).ok() && engines[m]->listen(&addresses[m]).ok(), "an engine that listens");
  }
  Pair pair;
  pair.meet(engines, {addresses, addresses});
  End ends[2];
  const std::vector<char> body = End::body_of(4);
  Status broken;
  bool moved = false, ended = false;
  for (size_t m = 0; m < 2; ++m) {
    ends[m].connection = std::move(pair.made[m][1 - m]);
    ends[m].connection->send({1, 0, 0, 0, static_cast<uint32_t>(body.size()), 0}, body.data());
  }
  for (const int64_t start = now_ms(); broken.ok();) {
    require(now_ms() - start < 10000, "the end that encrypts refuses the other one");
    // The plain end does not take the handshake for a message; the plain end may also be the first to close.
    static_cast<void>(ends[machine].connection->progress(ends[machine], &moved, &ended).ok());
    broken = ends[1 - machine].connection->progress(ends[1 - machine], &moved, &ended);
  }
  require(ends[0].received == 0 && ends[1].received == 0, "no message arrives");
  std::printf("%s\n", broken.text().c_str());
  return 0;
}

// Everything that passes a relay, both ways.
void pass_on(int listening, const sockaddr_in &door, std::string *seen) {
  const int ends[2] = {accept(listening, nullptr, nullptr), socket(AF_INET, SOCK_STREAM, 0)};
  require(connect(ends[1], reinterpret_cast<const sockaddr *>(&door), sizeof door) == 0, "the relay's connection");
  char data[1 << 16];
  for (;;) {
    pollfd polled[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
    if (poll(polled, 2, -1) < 0) continue;
    for (int end = 0; end < 2; ++end) {
      if (polled[end].revents == 0) continue;
      const ssize_t n = recv(ends[end], data, sizeof data, 0);
      if (n <= 0) {
        close(ends[0]);
        close(ends[1]);
        return;
      }
      seen->append(data, static_cast<size_t>(n));
      for (ssize_t sent = 0; sent < n;) {
        const ssize_t more = send(ends[1 - end], data + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
        if (more < 0) break;
        sent += more;
      }
    }
  }
}

int relay() {
  std::unique_ptr<WireEngine> engines[2];
  std::vector<Bytes> addresses(2);
  for (size_t m = 0; m < 2; ++m)
    require(make_engine({}, &engines[m]).ok() && engines[m]->listen(&addresses[m]).ok(), "an engine that listens");
  const sockaddr_in door = door_of(addresses[0]);
  sockaddr_in own = door;
  own.sin_port = 0;
  socklen_t size = sizeof own;
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  require(bind(listening, reinterpret_cast<const sockaddr *>(&own), size) == 0 && listen(listening, 4) == 0 &&
              getsockname(listening, reinterpret_cast<sockaddr *>(&own), &size) == 0,
          "a relay");
  // Machine 1 calls machine 0, and finds the relay at its address.
  std::vector<Bytes> seen_by_one = addresses;
  Id place;
  std::memcpy(&place, seen_by_one[0].data(), sizeof place);
  place.port = own.sin_port;
  std::memcpy(seen_by_one[0].data(), &place, sizeof place);
  std::string seen;
  std::thread between(pass_on, listening, door, &seen);
  Pair pair;
  pair.meet(engines, {addresses, seen_by_one});
  End ends[2];
  ends[0].connection = std::move(pair.made[0][1]);
  ends[1].connection = std::move(pair.made[1][0]);
  std::vector<std::vector<char>> bodies;
  for (uint64_t n = 0; n < 100; ++n) bodies.push_back(End::body_of(n));
  for (End &end : ends)
    for (uint64_t n = 0; n < 100; ++n)
      end.connection->send({1, 0, n, n, static_cast<uint32_t>(bodies[n].size()), 0}, bodies[n].data());
  bool moved = false, ended = false;
  for (const int64_t start = now_ms(); ends[0].received < 100 || ends[1].received < 100;) {
    require(now_ms() - start < 30000, "messages arrive through the relay");
    for (End &end : ends) require(end.connection->progress(end, &moved, &ended).ok(), "the connection holds");
  }
  for (End &end : ends) end.connection.reset();
  between.join();
  // Bodies are runs of one byte; of random bytes, so long a run comes once in 10^30 of them.
  size_t longest = 0, run = 0;
  for (size_t i = 1; i < seen.size(); ++i) {
    run = seen[i] == seen[i - 1] ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  require(seen.size() > 3000000, "everything passes the relay");
  std::printf("%s\n", longest >= 16 ? "bodies are readable" : "nothing is readable");
  return 0;
}

int meet(int strangers, bool wrong) {
  std::unique_ptr<WireEngine> engines[2];
  std::vector<Bytes> addresses(2);
  std::vector<std::unique_ptr<WireConnection>> made[2];
  Status outcomes[2];
  std::vector<int> held;
  for (int m = 0; m < 2; ++m) {
    require(make_engine({}, &engines[m]).ok(), "an engine");
    require(engines[m]->listen(&addresses[m]).ok(), "listening");
  }
  const auto run = [&](uint32_t self) {
    WireMeeting meeting;
    meeting.secret = wrong && self == 1 ? "another secret" : "the secret of this communicator";
    meeting.self = self;
    meeting.addresses = addresses;
    meeting.seconds = wrong ? 1 : 60;
    meeting.silence = 60;
    meeting.stop = [] { return false; };
    outcomes[self] = engines[self]->meet(meeting, &made[self]);
  };
  std::thread first(run, 0);
  for (int m = 0; m < 2; ++m) knock(addresses[static_cast<size_t>(m)], strangers, &held);
  std::thread second(run, 1);
  first.join();
  second.join();
  if (wrong) {
    require(!outcomes[0].ok() && !outcomes[1].ok(), "no connection without the secret");
    std::printf("%s\n", outcomes[0].text().c_str());
    return 0;
  }
  require(outcomes[0].ok() && outcomes[1].ok(), "both have met");
  End ends[2];
  ends[0].connection = std::move(made[0][1]);
  ends[1].connection = std::move(made[1][0]);
  exchange(ends[0], ends[1], 300);
  // Nobody listens any more.
  for (const Bytes &address : addresses) {
    const sockaddr_in door = door_of(address);
    const int one = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(one, reinterpret_cast<const sockaddr *>(&door), sizeof door) != 0, "the doors are closed");
    close(one);
  }
  for (const int one : held) close(one);
  std::printf("300 messages each way\n");
  return 0;
}

// Interfaces of machines as "10.0.3.0/24" says, the last number is the interface's own; each with who wants it.
std::vector<TcpAddress> machine_with(const std::vector<std::pair<uint8_t, InterfaceSource>> &networks, uint32_t streams = 1) {
  std::vector<TcpAddress> told;
  for (const auto &[network, source] : networks) {
    TcpAddress one = {};
    one.place.family = AF_INET;
    one.place.address[0] = 10;
    one.place.address[2] = network;
    one.place.address[3] = static_cast<unsigned char>(1 + told.size());
    one.prefix = 24;
    one.source = source;
    one.streams = streams;
    one.gpu_distance = kUnknownDistance;
    told.push_back(one);
  }
  return told;
}

// The networks of the rails, machine by machine.
std::string paired(std::vector<std::vector<TcpAddress>> machines) {
  pair_rails(&machines);
  std::string text;
  for (const std::vector<TcpAddress> &machine : machines) {
    text += text.empty() ? "" : " ";
    for (const TcpAddress &one : machine) text += std::to_string(one.place.address[2]);
  }
  return text;
}

int pairs() {
  const InterfaceSource net = InterfaceSource::kNet, list = InterfaceSource::kList, none = InterfaceSource::kNobody;
  const auto same = [](const std::string &found, const std::string &wanted) {
    require(found == wanted, (found + " in place of " + wanted).c_str());
  };
  same(paired({machine_with({{1, net}, {2, net}}), machine_with({{2, net}, {1, net}})}), "12 21");
  same(paired({machine_with({{1, net}, {2, net}, {3, net}}), machine_with({{1, net}, {2, net}})}), "12 12");
  same(paired({machine_with({{1, list}, {2, list}}), machine_with({{2, list}, {1, list}})}), "12 12");
  same(paired({machine_with({{1, list}, {2, list}, {3, list}}), machine_with({{3, list}, {2, list}})}), "23 23");
  same(paired(
           {machine_with({{1, list}, {2, list}}), machine_with({{3, list}, {4, list}}), machine_with({{5, list}, {6, list}})}),
       "12 34 56");
  same(paired({machine_with({{1, list}, {9, list}, {2, list}}), machine_with({{3, list}, {4, list}, {9, list}})}), "912 934");
  same(paired({machine_with({{7, none}, {1, none}, {2, none}}), machine_with({{7, none}, {2, none}, {1, none}})}), "712 712");
  same(paired({machine_with({{7, none}, {1, none}}), machine_with({{7, none}, {2, none}})}), "7 7");
  same(paired({machine_with({{1, none}, {2, none}}), machine_with({{2, none}, {1, none}})}), "1 2");
  same(paired({machine_with({{1, none}, {2, none}}), machine_with({{1, list}})}), "1 1");
  // Two interfaces of one network are a rail each.
  same(paired({machine_with({{1, list}, {1, list}}), machine_with({{1, list}, {1, list}})}), "11 11");
  // If every machine has NICs of the topology in one network, only these become rails; else they count like other interfaces.
  const InterfaceSource nic = InterfaceSource::kNic;
  const auto seven_and = [&](std::vector<std::pair<uint8_t, InterfaceSource>> others) {
    others.insert(others.begin(), {7, none});
    return machine_with(others);
  };
  same(paired({seven_and({{1, nic}, {2, nic}}), seven_and({{2, nic}, {1, nic}})}), "12 12");
  same(paired({seven_and({{1, nic}, {2, nic}}), seven_and({{3, nic}, {2, nic}})}), "2 2");
  // Cards in networks of their own are joined by a router, in the order of cards, whatever the first interface is.
  same(paired({seven_and({{1, nic}}), seven_and({{2, nic}})}), "1 2");
  same(paired({seven_and({{1, nic}, {2, nic}, {3, nic}}), seven_and({{4, nic}, {5, nic}})}), "12 45");
  same(paired({seven_and({{1, nic}, {2, nic}}), machine_with({{7, list}})}), "7 7");
  std::vector<std::vector<TcpAddress>> turned = {machine_with({{2, nic}, {1, nic}}), machine_with({{3, nic}, {4, nic}})};
  for (size_t i = 0; i < 2; ++i) {
    turned[0][i].nic = static_cast<uint32_t>(2 - i);
    turned[1][i].nic = static_cast<uint32_t>(1 + i);
  }
  same(paired(turned), "12 34");
  turned[0][0].fabric = turned[1][0].fabric = 1;
  turned[0][1].fabric = turned[1][1].fabric = 2;
  same(paired(turned), "12 43");
  // Of the interfaces of one card, that which is in one network with others.
  std::vector<std::vector<TcpAddress>> ports = {seven_and({{1, nic}, {2, nic}}), seven_and({{2, nic}})};
  ports[0][1].nic = ports[0][2].nic = ports[1][1].nic = 1;
  same(paired(ports), "2 2");
  ports[1][1].place.address[2] = 3;
  same(paired(ports), "1 3");
  // If a machine lacks a NIC, NICs with equal numbers are joined; without equal numbers, NICs are joined in order.
  std::vector<std::vector<TcpAddress>> lacks = {machine_with({{1, nic}, {2, nic}}), machine_with({{3, nic}})};
  lacks[0][0].nic = 1;
  lacks[0][1].nic = lacks[1][0].nic = 2;
  same(paired(lacks), "2 3");
  lacks[1][0].nic = 3;
  same(paired(lacks), "1 3");
  // Without cards nobody knows what an interface is for.
  same(paired({machine_with({{1, none}, {2, none}}), machine_with({{3, none}, {4, none}})}), "1 3");
  // An address of one kind does not reach one of another.
  std::vector<std::vector<TcpAddress>> kinds = {machine_with({{1, list}, {2, list}}), machine_with({{3, list}, {4, list}})};
  kinds[0][0].place.family = kinds[1][1].place.family = AF_INET6;
  same(paired(kinds), "12 43");
  kinds[1][1].place.family = AF_INET;
  same(paired(kinds), "2 3");
  same(paired({seven_and({{1, nic}, {2, none}}), seven_and({{2, none}, {1, none}})}), "712 712");
  same(paired({seven_and({{1, nic}}), seven_and({{1, nic}}), seven_and({{1, none}})}), "71 71 71");
  same(paired({seven_and({{1, nic}, {2, nic}}), machine_with({{2, list}})}), "2 2");
  same(paired({seven_and({{1, nic}, {2, nic}}), machine_with({{7, net}})}), "7 7");
  same(paired({seven_and({{1, nic}, {1, nic}, {2, nic}}), seven_and({{1, nic}, {1, nic}, {2, nic}})}), "12 12");
  same(paired({seven_and({{1, nic}}), machine_with({{7, none}})}), "7 7");
  // Interfaces that the topology separates are no rail, whatever the order of a list; but COLLC_NET overrules that.
  for (const InterfaceSource source : {list, net}) {
    std::vector<std::vector<TcpAddress>> apart = {machine_with({{1, source}, {2, source}}),
                                                  machine_with({{3, source}, {4, source}})};
    apart[0][0].fabric = apart[1][1].fabric = 1;
    apart[0][1].fabric = apart[1][0].fabric = 2;
    same(paired(apart), source == net ? "12 34" : "12 43");
    apart[0][1].fabric = 3;
    same(paired(apart), source == net ? "12 34" : "1 4");
  }
  // Those near GPUs come first, by both ends, where COLLC_NET does not say their order.
  for (const InterfaceSource source : {list, none, net}) {
    std::vector<std::vector<TcpAddress>> some = {machine_with({{7, source}, {1, source}, {2, source}}),
                                                 machine_with({{7, source}, {1, source}, {2, source}})};
    for (std::vector<TcpAddress> &machine : some) machine[2].gpu_distance = 2;
    some[0][0].gpu_distance = some[1][1].gpu_distance = 4;
    same(paired(some), source == net ? "712 712" : "271 271");
  }
  // The usual interface is listed again as the spare, unless COLLC_NET names all. A machine without another interface then has only this one.
  for (const InterfaceSource source : {list, none, nic, net}) {
    std::vector<std::vector<TcpAddress>> some = {machine_with({{1, source}, {2, source}, {7, InterfaceSource::kSpare}}),
                                                 machine_with({{1, source}})};
    require(pair_rails(&some) == (source != net), "a spare");
    require(some[0].size() == (source == net ? 1 : 2) && some[1].size() == some[0].size(), "a rail");
    require(some[0][0].place.address[2] == 1 && some[1].back().place.address[2] == 1, "of one network");
    if (source != net) require(some[0][1].place.address[2] == 7, "the spare is last");
  }
  // If the usual interface is the only rail of all machines, it is listed only once.
  std::vector<std::vector<TcpAddress>> one = {machine_with({{1, none}, {2, none}}), machine_with({{1, none}})};
  one[0].push_back(one[0][0]);
  one[0].back().source = InterfaceSource::kSpare;
  require(!pair_rails(&one) && one[0].size() == 1 && one[1].size() == 1, "no spare beside the usual interface");
  require(one[0][0].source == InterfaceSource::kSpare, "which goes wherever the system sends it");
  std::vector<std::vector<TcpAddress>> beside = {seven_and({{1, nic}}), seven_and({{1, nic}})};
  beside[0].push_back(beside[0][0]);
  beside[0].back().source = InterfaceSource::kSpare;
  require(pair_rails(&beside) && beside[0].size() == 2 && beside[1].size() == 2, "a spare beside another one");
  std::vector<std::vector<TcpAddress>> many = {machine_with({{1, list}, {2, list}, {3, list}}, 8),
                                               machine_with({{1, list}, {2, list}, {3, list}}, 6)};
  pair_rails(&many);
  require(many[0].size() == 2 && many[0][0].streams == 6 && many[1][1].streams == 6, "sixteen connections at most");
  std::printf("pairs\n");
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "hca" && argc > 3) {
    for (const std::string &port : passing_ports(argv[2], {argv + 3, argv + argc})) std::printf("%s\n", port.c_str());
    return 0;
  }
  if (what == "hcas" && argc > 2) {
    for (std::string list; std::getline(std::cin, list); std::printf("\n")) {
      const char *between = "";
      for (const std::string &port : passing_ports(list.c_str(), {argv + 2, argv + argc})) {
        std::printf("%s%s", between, port.c_str());
        between = " ";
      }
    }
    return 0;
  }
  if (what == "placed" && argc == 4) {
    for (const PlacedInterface &one : place_named(HcaFilter(argv[3]), find_rdma_interfaces(argv[2])))
      std::printf("%u %s\n", one.place, one.name.c_str());
    return 0;
  }
  if (what == "proof" && argc == 4) {
    const std::string message = argv[3];
    const Proof proof = prove(argv[2], Bytes(message.begin(), message.end()));
    std::printf("%s\n", hex_of(proof.data(), proof.size()).c_str());
    return 0;
  }
  if (what == "meet" && argc == 3) return meet(std::atoi(argv[2]), false);
  if (what == "wrong") return meet(0, true);
  if (what == "many" && argc == 3) return many(std::atoi(argv[2]));
  if (what == "plain" && argc == 3) return plain(static_cast<size_t>(std::atoi(argv[2])));
  if (what == "spare" && argc == 3) return spare(argv[2]);
  if (what == "alike" && argc == 3) return alike(std::string(argv[2]) == "usual");
  if (what == "late") return late();
  if (what == "replay") return replay();
  if (what == "together") return together();
  if (what == "relay") return relay();
  if (what == "pairs") return pairs();
  if (what == "near" && argc > 2) {
    const cpu_set_t found = cores_near(std::vector<std::string>(argv + 3, argv + argc), read_cores("0-7"), argv[2]);
    for (size_t core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &found)) std::printf("%zu ", core);
    return 0;
  }
  if (what == "far" && argc > 3) {
    std::vector<uint64_t> gpus;
    for (int i = 4; i < argc; ++i) {
      unsigned domain = 0, bus = 0, device = 0;
      require(std::sscanf(argv[i], "%x:%x:%x", &domain, &bus, &device) == 3, "a bus id");
      gpus.push_back(uint64_t{domain} << 32 | bus << 16 | device << 8 | 1);
    }
    std::printf("%u\n", distance_from_gpus(argv[3], gpus, argv[2]));
    return 0;
  }
  if (what == "card" && argc == 5) {
    Card nic = {};
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    if (std::sscanf(argv[3], "%x:%x:%x.%u", &domain, &bus, &device, &function) == 4)
      nic.bus = uint64_t{domain} << 32 | bus << 16 | device << 8 | (function + 1);
    char name[2 * sizeof nic.name] = "";
    std::memcpy(name, argv[4], std::min(std::strlen(argv[4]), sizeof name));
    std::memcpy(&nic.name, name, sizeof nic.name);
    std::memcpy(&nic.rest, name + sizeof nic.name, sizeof nic.rest);
    for (const std::string &name : find_interfaces(nic, argv[2])) std::printf("%s ", name.c_str());
    return 0;
  }
  if (what == "cards" && argc == 3) {
    for (const RdmaInterface &one : find_rdma_interfaces(argv[2]))
      std::printf("%s %s\n", one.port.c_str(), one.interface.c_str());
    return 0;
  }
  if (what == "open") {
    std::unique_ptr<WireEngine> engine;
    const Status status = make_engine({}, &engine);
    std::printf("%s\n", status.ok() ? "an engine" : status.text().c_str());
    return 0;
  }
  return 2;
}
