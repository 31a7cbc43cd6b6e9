#include "wire/tcp_peers.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/sockets.h"

namespace collc {
namespace {

constexpr char kMagic[8] = {'c', 'o', 'l', 'l', 'c', 'w', 'r', '3'};
constexpr int64_t kPollMs = 20;

// Makes traffic of the socket use the rail's interface, even if another one leads there, too. Where the system forbids this,
// routes choose by address.
void bind_to(const Descriptor &fd, const TcpAddress &local) {
  static_cast<void>(
      setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, local.interface, static_cast<socklen_t>(std::strlen(local.interface))));
}

void bind_from(const Descriptor &fd, const TcpAddress &local) {
  bind_to(fd, local);
  // Binds to the address of the rail, too, for systems that choose routes by the sender's address, as between rails in
  // different networks.
  TcpAddress from = local;
  from.place.port = 0;
  const Address address = public_address(from.place);
  const int no_port_yet = 1;
  static_cast<void>(setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &no_port_yet, sizeof no_port_yet));
  static_cast<void>(bind(fd.get(), address.get(), address.size));
}

// Returns whether the caller has given up.
bool is_closed_by_peer(const Descriptor &fd) {
  char word = 0;
  const ssize_t n = recv(fd.get(), &word, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool is_spare_address(const TcpAddress &one) { return one.source == InterfaceSource::kSpare; }

}  // namespace

Status TcpPeers::read(const WireMeeting &meeting, bool tls) {
  tls_ = tls;
  secret_ = meeting.secret;
  self_ = meeting.self;
  for (const Bytes &bytes : meeting.addresses) {
    if (bytes.empty() || bytes.size() % sizeof(TcpAddress) != 0 || bytes.size() / sizeof(TcpAddress) > kMaxRails + 1)
      return fail(ncclInternalError, "a machine's address has %zu bytes", bytes.size());
    std::vector<TcpAddress> addresses(bytes.size() / sizeof(TcpAddress));
    std::memcpy(addresses.data(), bytes.data(), bytes.size());
    for (TcpAddress &address : addresses) {
      address.host[sizeof address.host - 1] = 0;
      address.interface[sizeof address.interface - 1] = 0;
      address.engine[sizeof address.engine - 1] = 0;
      address.streams = std::clamp(address.streams, 1U, kMaxRails);
    }
    if (is_spare_address(addresses[0])) return fail(ncclInternalError, "a machine's address has no interface");
    addresses_.push_back(std::move(addresses));
  }
  COLLC_RETURN_IF_FAILED(check_engines());
  const std::vector<TcpAddress> &local_addresses = addresses_[self_];
  ninterfaces_ = local_addresses.size() -
                 static_cast<size_t>(std::count_if(local_addresses.begin(), local_addresses.end(), is_spare_address));
  has_spare_ = pair_rails(&addresses_);
  return {};
}

Status TcpPeers::check_engines() const {
  const std::vector<TcpAddress> &local_addresses = addresses_[self_];
  for (uint32_t m = 0; m < nmachines(); ++m) {
    const std::vector<TcpAddress> &peer = addresses_[m];
    if (std::strcmp(peer[0].engine, local_addresses[0].engine) != 0)
      return fail(ncclInvalidUsage, "%s joins over the engine %s, %s over %s: set COLLC_NET alike", name_of(self_, 0).c_str(),
                  printable(local_addresses[0].engine).c_str(), name_of(m, 0).c_str(), printable(peer[0].engine).c_str());
  }
  return {};
}

double TcpPeers::speed(uint32_t machine, uint32_t rail) const {
  const TcpAddress &local = address(self_, rail), &remote = address(machine, rail);
  return std::min(local.mbits, remote.mbits) / 8.0 / local.streams;
}

std::string TcpPeers::name_of(uint32_t machine, uint32_t rail) const {
  const TcpAddress &one = address(machine, rail);
  return format("%s at %s (%s)", printable(one.host).c_str(), describe(public_address(one.place)).c_str(),
                printable(one.interface).c_str());
}

std::string TcpPeers::name_of(uint32_t machine) const {
  std::string name = name_of(machine, 0);
  for (size_t i = 1; i < addresses_[machine].size() - (has_spare_ ? 1 : 0); ++i) {
    const TcpAddress &address = addresses_[machine][i];
    name += format(" and %s (%s)", describe(public_address(address.place)).c_str(), printable(address.interface).c_str());
  }
  return name;
}

std::string TcpPeers::describe_rail(uint32_t machine, uint32_t rail) const {
  const char *const what = is_spare(rail) ? "the usual interface" : "rail";
  return format("%s %s to %s", what, address(self_, rail).interface, name_of(machine, rail).c_str());
}

std::vector<std::string> TcpPeers::interfaces() const {
  std::vector<std::string> names;
  for (uint32_t rail = 0; rail < nrails(); rail += address(self_, 0).streams)
    names.emplace_back(address(self_, rail).interface);
  return names;
}

TcpHello TcpPeers::hello_to(uint32_t machine, uint32_t rail, uint64_t attempt) const {
  TcpHello hello = {};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.from = self_;
  hello.to = machine;
  hello.rail = rail;
  hello.attempt = attempt;
  return hello;
}

std::string TcpPeers::key_of(const TcpHello &hello) const {
  if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0 || hello.from >= nmachines() || hello.to >= hello.from ||
      hello.rail >= nways())
    return "";
  const TcpAddress &called_address = address(hello.to, hello.rail);
  return secret_ + std::string(std::begin(called_address.challenge), std::end(called_address.challenge));
}

std::unique_ptr<TcpConnection> TcpPeers::connect(uint32_t machine, uint32_t rail, TcpSocket socket, double silence) const {
  std::unique_ptr<TlsChannel> tls;
  if (tls_) {
    // The key serves only this connection: it is derived from the hello, which both ends know.
    const bool accepts = machine > self_;
    TcpHello hello = hello_to(machine, rail, socket.attempt);
    if (accepts) std::swap(hello.from, hello.to);
    static constexpr char kPurpose[] = "collc encrypts";
    Bytes message(kPurpose, kPurpose + sizeof kPurpose);
    const auto *const words = reinterpret_cast<const unsigned char *>(&hello);
    message.insert(message.end(), words, words + sizeof hello);
    tls = std::make_unique<TlsChannel>(socket.fd.get(), accepts, prove(key_of(hello), message));
  }
  return std::make_unique<TcpConnection>(std::move(socket.fd), std::move(tls), address(self_, rail).interface,
                                         name_of(machine, rail), silence);
}

Status TcpListeners::open(std::vector<TcpAddress> *addresses) {
  const bool several = addresses->size() > 1;
  Status last_error;
  for (size_t i = 0; i < addresses->size();) {
    TcpAddress &local = (*addresses)[i];
    const Status open_status = open_one(&local, several && !is_spare_address(local));
    if (open_status.ok()) {
      ++i;
      continue;
    }
    if (!several || local.source == InterfaceSource::kNet) return open_status;
    log(LogLevel::kWarn, "%s (%s): machines are joined without it", open_status.text().c_str(), local.interface);
    last_error = open_status;
    addresses->erase(addresses->begin() + static_cast<std::ptrdiff_t>(i));
  }
  return addresses->empty() || is_spare_address(addresses->front()) ? last_error : Status();
}

Status TcpListeners::open_one(TcpAddress *local, bool bound) {
  Descriptor socket;
  COLLC_RETURN_IF_FAILED(listen_at(public_address(local->place), &socket));
  if (bound) bind_to(socket, *local);
  sockaddr_storage at = {};
  socklen_t size = sizeof at;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr *>(&at), &size) != 0) return fail_errno("cannot listen", errno);
  local->place.port = local->place.family == AF_INET6 ? reinterpret_cast<sockaddr_in6 &>(at).sin6_port
                                                      : reinterpret_cast<sockaddr_in &>(at).sin_port;
  acceptors_.push_back(std::make_unique<Acceptor>(std::move(socket), sizeof(TcpHello), false));
  addresses_.push_back(*local);
  return {};
}

void TcpListeners::expect(std::shared_ptr<const TcpPeers> peers) {
  peers_ = std::move(peers);
  for (size_t i = acceptors_.size(); i-- > 0;) {
    bool is_used = false;
    for (uint32_t way = 0; way < peers_->nways(); ++way) {
      const TcpAddress &local = peers_->address(peers_->self(), way);
      is_used |= std::strcmp(addresses_[i].interface, local.interface) == 0 && addresses_[i].place.port == local.place.port;
    }
    if (!is_used) acceptors_.erase(acceptors_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  sockets_.resize(peers_->nmachines());
  for (std::vector<TcpSocket> &of_machine : sockets_) of_machine.resize(peers_->nways());
  attempts_.assign(peers_->nmachines(), std::vector<uint64_t>(peers_->nways()));
}

void TcpListeners::add_to(std::vector<pollfd> *polled) const {
  for (const auto &acceptor : acceptors_) acceptor->add_to(polled);
}

void TcpListeners::handle_events(const pollfd **at) {
  const Acceptor::Owner owner = {[this](const unsigned char *words) { return key_for(words); },
                                 [this](Descriptor client, const unsigned char *words) { admit(std::move(client), words); }};
  for (const auto &acceptor : acceptors_) acceptor->handle_events(at, owner);
}

void TcpListeners::poll_now() {
  if (now_ms() - last_poll_ms_ < kPollMs) return;
  last_poll_ms_ = now_ms();
  std::vector<pollfd> polled;
  add_to(&polled);
  if (poll(polled.data(), polled.size(), 0) < 0)
    for (pollfd &one : polled) one.revents = 0;
  const pollfd *at = polled.data();
  handle_events(&at);
}

TcpSocket TcpListeners::take(uint32_t machine, uint32_t rail) { return std::exchange(sockets_[machine][rail], {}); }

std::string TcpListeners::key_for(const unsigned char *words) const {
  TcpHello hello;
  std::memcpy(&hello, words, sizeof hello);
  return hello.to == peers_->self() ? peers_->key_of(hello) : "";
}

void TcpListeners::admit(Descriptor client, const unsigned char *words) {
  TcpHello hello;
  std::memcpy(&hello, words, sizeof hello);
  if (hello.attempt <= attempts_[hello.from][hello.rail]) return;
  attempts_[hello.from][hello.rail] = hello.attempt;
  if (is_closed_by_peer(client)) return;
  const char admitted = 1;
  if (send(client.get(), &admitted, sizeof admitted, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof admitted)) return;
  sockets_[hello.from][hello.rail] = {std::move(client), hello.attempt};
}

void TcpConnector::prepare(int64_t pause_ms) {
  if (fd_) return;
  if (attempt_ != 0 && now_ms() - end_ms_ < pause_ms) return;
  const Address address = public_address(peers_->address(to_, rail_).place);
  fd_ = make_socket(address.storage.ss_family);
  ++attempt_;
  start_ms_ = now_ms();
  is_refused_ = false;
  if (fd_ && peers_->is_bound(rail_)) bind_from(fd_, peers_->address(peers_->self(), rail_));
  if (fd_ && (connect(fd_.get(), address.get(), address.size) == 0 || errno == EINPROGRESS)) return;
  last_error_ = std::strerror(errno);
  is_refused_ = true;
  close();
}

void TcpConnector::add_to(std::vector<pollfd> *polled) const {
  polled->push_back({fd_.get(), static_cast<short>(hello_sent_ ? POLLIN : POLLOUT), 0});
}

void TcpConnector::close() {
  fd_.reset();
  hello_sent_ = is_answer_sent_ = false;
  end_ms_ = now_ms();
}

void TcpConnector::hang_up() {
  const linger none = {1, 0};
  if (hello_sent_) static_cast<void>(setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none));
  close();
}

void TcpConnector::give_up(int64_t after_ms, int64_t asked_ms) {
  if (!fd_ || asked_ms - start_ms_ < after_ms) return;
  last_error_ = "no answer";
  hang_up();
}

bool TcpConnector::call(int64_t pause_ms, int64_t after_ms, TcpSocket *socket) {
  if (now_ms() - last_call_ms_ < kPollMs) return false;
  last_call_ms_ = now_ms();
  prepare(pause_ms);
  std::vector<pollfd> polled;
  add_to(&polled);
  if (poll(polled.data(), polled.size(), 0) < 0) return false;
  if (polled[0].revents == 0) {
    give_up(after_ms, last_call_ms_);
    return false;
  }
  if (!advance(&socket->fd)) return false;
  socket->attempt = attempt_;
  return true;
}

bool TcpConnector::advance(Descriptor *connected) {
  if (!fd_) return false;
  if (!hello_sent_) {
    send_hello();
    return false;
  }
  if (!is_answer_sent_) {
    const Greeting::Step step = greeting_.advance(fd_.get());
    if (step == Greeting::Step::kWaits) return false;
    if (step == Greeting::Step::kFalse) last_error_ = "another program answers there";
    if (step == Greeting::Step::kRefused) last_error_ = "it refuses this machine";
    is_answer_sent_ = step == Greeting::Step::kProved;
    if (!is_answer_sent_) close();
    if (!is_answer_sent_) return false;
  }
  char admitted = 0;
  const ssize_t n = recv(fd_.get(), &admitted, sizeof admitted, 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n > 0) *connected = std::move(fd_);
  close();
  return n > 0;
}

void TcpConnector::send_hello() {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  const TcpHello hello = this->hello();
  if (error == 0 && greeting_.start(fd_.get(), peers_->key_of(hello), hello) == Greeting::Step::kWaits) {
    hello_sent_ = true;
    return;
  }
  last_error_ = std::strerror(error != 0 ? error : errno);
  is_refused_ = true;
  close();
}

}  // namespace collc
