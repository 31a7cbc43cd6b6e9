#include "wire/tcp_party.h"

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
constexpr int64_t kGlanceMs = 20;

// Makes traffic of the socket use the rail's interface, even if another one leads there, too. Where the system forbids this,
// routes choose by address.
void bind_to(const Descriptor &fd, const TcpAddress &own) {
  static_cast<void>(
      setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, own.interface, static_cast<socklen_t>(std::strlen(own.interface))));
}

void bind_from(const Descriptor &fd, const TcpAddress &own) {
  bind_to(fd, own);
  // Binds to the address of the rail, too, for systems that choose routes by the sender's address, as between rails in
  // different networks.
  TcpAddress from = own;
  from.place.port = 0;
  const Address address = public_address(from.place);
  const int later = 1;
  static_cast<void>(setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later));
  static_cast<void>(bind(fd.get(), address.get(), address.size));
}

// Returns whether the caller has given up.
bool has_hung_up(const Descriptor &fd) {
  char word = 0;
  const ssize_t n = recv(fd.get(), &word, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool is_usual_again(const TcpAddress &one) { return one.wish == TcpWish::kSpare; }

}  // namespace

Status TcpParty::read(const WireMeeting &meeting, bool tls) {
  tls_ = tls;
  secret_ = meeting.secret;
  self_ = meeting.self;
  for (const Bytes &bytes : meeting.addresses) {
    if (bytes.empty() || bytes.size() % sizeof(TcpAddress) != 0 || bytes.size() / sizeof(TcpAddress) > kMostRails + 1)
      return fail(ncclInternalError, "a machine's address has %zu bytes", bytes.size());
    std::vector<TcpAddress> own(bytes.size() / sizeof(TcpAddress));
    std::memcpy(own.data(), bytes.data(), bytes.size());
    for (TcpAddress &address : own) {
      address.host[sizeof address.host - 1] = 0;
      address.interface[sizeof address.interface - 1] = 0;
      address.engine[sizeof address.engine - 1] = 0;
      address.streams = std::clamp(address.streams, 1U, kMostRails);
    }
    if (is_usual_again(own[0])) return fail(ncclInternalError, "a machine's address has no interface");
    addresses_.push_back(std::move(own));
  }
  COLLC_RETURN_IF_FAILED(check_alike());
  const std::vector<TcpAddress> &own = addresses_[self_];
  told_ = own.size() - static_cast<size_t>(std::count_if(own.begin(), own.end(), is_usual_again));
  spare_ = pair_rails(&addresses_);
  return {};
}

Status TcpParty::check_alike() const {
  const std::vector<TcpAddress> &own = addresses_[self_];
  for (uint32_t m = 0; m < nmachines(); ++m) {
    const std::vector<TcpAddress> &other = addresses_[m];
    if (std::strcmp(other[0].engine, own[0].engine) != 0)
      return fail(ncclInvalidUsage, "%s joins over the engine %s, %s over %s: set COLLC_NET alike", name_of(self_, 0).c_str(),
                  printable(own[0].engine).c_str(), name_of(m, 0).c_str(), printable(other[0].engine).c_str());
  }
  return {};
}

double TcpParty::speed(uint32_t machine, uint32_t rail) const {
  const TcpAddress &own = address(self_, rail), &other = address(machine, rail);
  return std::min(own.mbits, other.mbits) / 8.0 / own.streams;
}

std::string TcpParty::name_of(uint32_t machine, uint32_t rail) const {
  const TcpAddress &one = address(machine, rail);
  return format("%s at %s (%s)", printable(one.host).c_str(), describe(public_address(one.place)).c_str(),
                printable(one.interface).c_str());
}

std::string TcpParty::name_of(uint32_t machine) const {
  std::string name = name_of(machine, 0);
  for (size_t i = 1; i < addresses_[machine].size() - (spare_ ? 1 : 0); ++i) {
    const TcpAddress &one = addresses_[machine][i];
    name += format(" and %s (%s)", describe(public_address(one.place)).c_str(), printable(one.interface).c_str());
  }
  return name;
}

std::string TcpParty::describe_rail(uint32_t machine, uint32_t rail) const {
  const char *const what = is_spare(rail) ? "the usual interface" : "rail";
  return format("%s %s to %s", what, address(self_, rail).interface, name_of(machine, rail).c_str());
}

std::vector<std::string> TcpParty::interfaces() const {
  std::vector<std::string> names;
  for (uint32_t rail = 0; rail < nrails(); rail += address(self_, 0).streams)
    names.emplace_back(address(self_, rail).interface);
  return names;
}

TcpHello TcpParty::hello_to(uint32_t machine, uint32_t rail, uint64_t attempt) const {
  TcpHello hello = {};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.from = self_;
  hello.to = machine;
  hello.rail = rail;
  hello.attempt = attempt;
  return hello;
}

std::string TcpParty::key_of(const TcpHello &hello) const {
  if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0 || hello.from >= nmachines() || hello.to >= hello.from ||
      hello.rail >= nways())
    return "";
  const TcpAddress &called = address(hello.to, hello.rail);
  return secret_ + std::string(std::begin(called.challenge), std::end(called.challenge));
}

std::unique_ptr<TcpConnection> TcpParty::connect(uint32_t machine, uint32_t rail, TcpVisitor made, double silence) const {
  std::unique_ptr<TlsChannel> tls;
  if (tls_) {
    // The key serves only this connection: it is derived from the hello, which both ends know.
    const bool accepts = machine > self_;
    TcpHello hello = hello_to(machine, rail, made.attempt);
    if (accepts) std::swap(hello.from, hello.to);
    static constexpr char kPurpose[] = "collc encrypts";
    Bytes message(kPurpose, kPurpose + sizeof kPurpose);
    const auto *const words = reinterpret_cast<const unsigned char *>(&hello);
    message.insert(message.end(), words, words + sizeof hello);
    tls = std::make_unique<TlsChannel>(made.fd.get(), accepts, prove(key_of(hello), message));
  }
  return std::make_unique<TcpConnection>(std::move(made.fd), std::move(tls), address(self_, rail).interface,
                                         name_of(machine, rail), silence);
}

Status TcpDoors::open(std::vector<TcpAddress> *addresses) {
  const bool several = addresses->size() > 1;
  Status last;
  for (size_t i = 0; i < addresses->size();) {
    TcpAddress &mine = (*addresses)[i];
    const Status opened = open_one(&mine, several && !is_usual_again(mine));
    if (opened.ok()) {
      ++i;
      continue;
    }
    if (!several || mine.wish == TcpWish::kNet) return opened;
    log(LogLevel::kWarn, "%s (%s): machines are joined without it", opened.text().c_str(), mine.interface);
    last = opened;
    addresses->erase(addresses->begin() + static_cast<std::ptrdiff_t>(i));
  }
  return addresses->empty() || is_usual_again(addresses->front()) ? last : Status();
}

Status TcpDoors::open_one(TcpAddress *mine, bool bound) {
  Descriptor socket;
  COLLC_RETURN_IF_FAILED(listen_at(public_address(mine->place), &socket));
  if (bound) bind_to(socket, *mine);
  sockaddr_storage at = {};
  socklen_t size = sizeof at;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr *>(&at), &size) != 0) return fail_errno("cannot listen", errno);
  mine->place.port = mine->place.family == AF_INET6 ? reinterpret_cast<sockaddr_in6 &>(at).sin6_port
                                                    : reinterpret_cast<sockaddr_in &>(at).sin_port;
  acceptors_.push_back(std::make_unique<Acceptor>(std::move(socket), sizeof(TcpHello), false));
  places_.push_back(*mine);
  return {};
}

void TcpDoors::expect(std::shared_ptr<const TcpParty> party) {
  party_ = std::move(party);
  for (size_t i = acceptors_.size(); i-- > 0;) {
    bool used = false;
    for (uint32_t way = 0; way < party_->nways(); ++way) {
      const TcpAddress &mine = party_->address(party_->self(), way);
      used |= std::strcmp(places_[i].interface, mine.interface) == 0 && places_[i].place.port == mine.place.port;
    }
    if (!used) acceptors_.erase(acceptors_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  visitors_.resize(party_->nmachines());
  for (std::vector<Visitor> &of_machine : visitors_) of_machine.resize(party_->nways());
  attempts_.assign(party_->nmachines(), std::vector<uint64_t>(party_->nways()));
}

void TcpDoors::add_to(std::vector<pollfd> *polled) const {
  for (const auto &acceptor : acceptors_) acceptor->add_to(polled);
}

void TcpDoors::handle_events(const pollfd **at) {
  const Acceptor::Owner owner = {[this](const unsigned char *words) { return key_for(words); },
                                 [this](Descriptor client, const unsigned char *words) { admit(std::move(client), words); }};
  for (const auto &acceptor : acceptors_) acceptor->handle_events(at, owner);
}

void TcpDoors::look() {
  if (now_ms() - looked_ms_ < kGlanceMs) return;
  looked_ms_ = now_ms();
  std::vector<pollfd> polled;
  add_to(&polled);
  if (poll(polled.data(), polled.size(), 0) < 0)
    for (pollfd &one : polled) one.revents = 0;
  const pollfd *at = polled.data();
  handle_events(&at);
}

TcpDoors::Visitor TcpDoors::take(uint32_t machine, uint32_t rail) { return std::exchange(visitors_[machine][rail], {}); }

std::string TcpDoors::key_for(const unsigned char *words) const {
  TcpHello hello;
  std::memcpy(&hello, words, sizeof hello);
  return hello.to == party_->self() ? party_->key_of(hello) : "";
}

void TcpDoors::admit(Descriptor client, const unsigned char *words) {
  TcpHello hello;
  std::memcpy(&hello, words, sizeof hello);
  if (hello.attempt <= attempts_[hello.from][hello.rail]) return;
  attempts_[hello.from][hello.rail] = hello.attempt;
  if (has_hung_up(client)) return;
  const char admitted = 1;
  if (send(client.get(), &admitted, sizeof admitted, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof admitted)) return;
  visitors_[hello.from][hello.rail] = {std::move(client), hello.attempt};
}

void TcpCaller::prepare(int64_t pause_ms) {
  if (fd_) return;
  if (attempt_ != 0 && now_ms() - ended_ms_ < pause_ms) return;
  const Address address = public_address(party_->address(to_, rail_).place);
  fd_ = make_socket(address.storage.ss_family);
  ++attempt_;
  begun_ms_ = now_ms();
  refused_ = false;
  if (fd_ && party_->is_bound(rail_)) bind_from(fd_, party_->address(party_->self(), rail_));
  if (fd_ && (connect(fd_.get(), address.get(), address.size) == 0 || errno == EINPROGRESS)) return;
  last_ = std::strerror(errno);
  refused_ = true;
  forget();
}

void TcpCaller::add_to(std::vector<pollfd> *polled) const {
  polled->push_back({fd_.get(), static_cast<short>(told_ ? POLLIN : POLLOUT), 0});
}

void TcpCaller::forget() {
  fd_.reset();
  told_ = proved_ = false;
  ended_ms_ = now_ms();
}

void TcpCaller::hang_up() {
  const linger none = {1, 0};
  if (told_) static_cast<void>(setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none));
  forget();
}

void TcpCaller::give_up(int64_t after_ms, int64_t asked_ms) {
  if (!fd_ || asked_ms - begun_ms_ < after_ms) return;
  last_ = "no answer";
  hang_up();
}

bool TcpCaller::call(int64_t pause_ms, int64_t after_ms, TcpVisitor *made) {
  if (now_ms() - called_ms_ < kGlanceMs) return false;
  called_ms_ = now_ms();
  prepare(pause_ms);
  std::vector<pollfd> polled;
  add_to(&polled);
  if (poll(polled.data(), polled.size(), 0) < 0) return false;
  if (polled[0].revents == 0) {
    give_up(after_ms, called_ms_);
    return false;
  }
  if (!advance(&made->fd)) return false;
  made->attempt = attempt_;
  return true;
}

bool TcpCaller::advance(Descriptor *connected) {
  if (!fd_) return false;
  if (!told_) {
    tell();
    return false;
  }
  if (!proved_) {
    const Greeting::Step step = greeting_.advance(fd_.get());
    if (step == Greeting::Step::kWaits) return false;
    if (step == Greeting::Step::kFalse) last_ = "something else answers there";
    if (step == Greeting::Step::kRefused) last_ = "it does not take this machine in";
    proved_ = step == Greeting::Step::kProved;
    if (!proved_) forget();
    if (!proved_) return false;
  }
  char admitted = 0;
  const ssize_t n = recv(fd_.get(), &admitted, sizeof admitted, 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (n > 0) *connected = std::move(fd_);
  forget();
  return n > 0;
}

void TcpCaller::tell() {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  const TcpHello hello = this->hello();
  if (error == 0 && greeting_.start(fd_.get(), party_->key_of(hello), hello) == Greeting::Step::kWaits) {
    told_ = true;
    return;
  }
  last_ = std::strerror(error != 0 ? error : errno);
  refused_ = true;
  forget();
}

}  // namespace collc
