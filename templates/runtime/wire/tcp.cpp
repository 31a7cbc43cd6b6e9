// The engine of plain sockets: machines meet over one interface, or over each of several.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "bootstrap/sockets.h"
#include "wire/railed.h"
#include "wire/tcp_connection.h"
#include "wire/tcp_party.h"

namespace collc {
namespace {

constexpr int kSliceMs = 20;  // how often the meeting looks whether it should stop
constexpr int64_t kPauseMs = 30;  // between attempts

class TcpMeeting {
 public:
  TcpMeeting(const WireMeeting &meeting, std::shared_ptr<TcpDoors> doors, bool tls)
      : meeting_(meeting), doors_(std::move(doors)), tls_(tls) {}

  Status run(std::vector<std::unique_ptr<WireConnection>> *made) {
    const auto party = std::make_shared<TcpParty>();
    COLLC_RETURN_IF_FAILED(party->read(meeting_, tls_));
    party_ = party;
    doors_->expect(party_);
    made_.resize(party_->nmachines());
    for (auto &rails : made_) rails.resize(party_->nrails());
    std::vector<TcpCaller> callers;
    for (uint32_t to = 0; to < meeting_.self; ++to)
      for (uint32_t rail = 0; rail < party_->nrails(); ++rail) callers.emplace_back(party_, to, rail, 0);
    const int64_t deadline = now_ms() + static_cast<int64_t>(meeting_.seconds * 1000);
    while (!complete()) {
      if (meeting_.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
      if (now_ms() >= deadline) return too_late_to_meet();
      look(callers);
    }
    connect(made);
    return {};
  }

 private:
  void look(std::vector<TcpCaller> &callers) {
    std::vector<pollfd> polled;
    doors_->add_to(&polled);
    const size_t accepting = polled.size();
    for (TcpCaller &caller : callers) {
      // An attempt has no end of its own: the other may be stopped, and would take the first of two hellos for the only one.
      if (!made_[caller.to()][caller.rail()].fd) caller.prepare(kPauseMs);
      caller.add_to(&polled);
    }
    if (poll(polled.data(), polled.size(), kSliceMs) < 0)
      for (pollfd &one : polled) one.revents = 0;
    const pollfd *at = polled.data();
    doors_->handle_events(&at);
    for (uint32_t m = meeting_.self + 1; m < made_.size(); ++m)
      for (uint32_t rail = 0; rail < made_[m].size(); ++rail) {
        TcpDoors::Visitor visitor = doors_->take(m, rail);
        if (visitor.attempt != 0) made_[m][rail] = std::move(visitor);
      }
    for (size_t i = 0; i < callers.size(); ++i) {
      TcpDoors::Visitor &made = made_[callers[i].to()][callers[i].rail()];
      if (polled[accepting + i].revents != 0 && callers[i].advance(&made.fd)) made.attempt = callers[i].attempt();
      if (!callers[i].last().empty()) last_ = callers[i].last();
    }
  }

  bool is_complete(size_t machine) const {
    return std::all_of(made_[machine].begin(), made_[machine].end(), [](const auto &one) { return one.attempt != 0; });
  }

  bool complete() const {
    for (size_t m = 0; m < made_.size(); ++m)
      if (m != meeting_.self && !is_complete(m)) return false;
    return true;
  }

  // Names what is missing by the interfaces at both ends.
  Status too_late_to_meet() const {
    std::string missing;
    uint32_t first = kNoRail;
    for (uint32_t m = 0; m < made_.size(); ++m)
      for (uint32_t rail = 0; m != meeting_.self && rail < made_[m].size(); ++rail) {
        if (made_[m][rail].attempt != 0) continue;
        missing += (missing.empty() ? "" : ", ") + party_->name_of(m, rail);
        first = std::min(first, rail);
      }
    return fail(ncclSystemError, "no connection after %.0f s from %s with %s%s", meeting_.seconds,
                party_->name_of(meeting_.self, first).c_str(), missing.c_str(),
                last_.empty() ? ": is a firewall between, or is COLLC_NET wrong?" : (" (" + last_ + ")").c_str());
  }

  void connect(std::vector<std::unique_ptr<WireConnection>> *made) {
    made->clear();
    made->resize(made_.size());
    for (uint32_t m = 0; m < made_.size(); ++m) {
      if (m == meeting_.self) continue;
      if (made_[m].size() == 1)
        (*made)[m] = party_->connect(m, 0, std::move(made_[m][0]), meeting_.silence);
      else
        (*made)[m] = std::make_unique<RailedConnection>(party_, doors_, m, std::move(made_[m]), meeting_.silence);
    }
  }

  const WireMeeting &meeting_;
  std::shared_ptr<TcpDoors> doors_;
  bool tls_;
  std::shared_ptr<const TcpParty> party_;
  std::vector<std::vector<TcpVisitor>> made_;  // by machine and rail
  std::string last_;  // why an attempt failed
};

// Of an interface; 0 where the system does not know it.
uint32_t mbits_of(const char *interface) {
  FILE *const file = std::fopen(format("/sys/class/net/%s/speed", interface).c_str(), "re");
  if (file == nullptr) return 0;
  long speed = 0;
  const bool known = std::fscanf(file, "%ld", &speed) == 1 && speed > 0;
  std::fclose(file);
  return known ? static_cast<uint32_t>(std::min(speed, 100000000L)) : 0;
}

class TcpEngine final : public WireEngine {
 public:
  TcpEngine(const std::vector<std::string> &interfaces, uint32_t streams, bool tls, const char *above)
      : interfaces_(interfaces.empty() ? std::vector<std::string>{""} : interfaces),
        streams_(streams),
        tls_(tls),
        above_(above) {}
  const char *name() const override { return "tcp"; }

  Status listen(Bytes *address) override {
    unsigned char challenge[sizeof(TcpAddress::challenge)];
    COLLC_RETURN_IF_FAILED(random_bytes(challenge, sizeof challenge));
    std::vector<TcpAddress> own;
    for (const std::string &interface : interfaces_) {
      TcpAddress mine = {};
      COLLC_RETURN_IF_FAILED(choose(interface, &mine));
      std::memcpy(mine.challenge, challenge, sizeof challenge);
      for (const TcpAddress &other : own)
        if (std::strcmp(other.interface, mine.interface) == 0)
          return fail(ncclInvalidUsage, "COLLC_NET names the interface %s twice", mine.interface);
      own.push_back(mine);
    }
    doors_ = std::make_shared<TcpDoors>();
    COLLC_RETURN_IF_FAILED(doors_->open(&own));
    for (const TcpAddress &mine : own)
      log(LogLevel::kInfo, "%s: waiting for other machines on %s (%s)", above_, describe(public_address(mine.place)).c_str(),
          mine.interface);
    const auto *const words = reinterpret_cast<const unsigned char *>(own.data());
    *address = Bytes(words, words + own.size() * sizeof(TcpAddress));
    return {};
  }

  Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *made) override {
    return TcpMeeting(meeting, std::move(doors_), tls_).run(made);
  }

 private:
  Status choose(const std::string &interface, TcpAddress *mine) const {
    std::strncpy(mine->engine, above_, sizeof mine->engine - 1);
    gethostname(mine->host, sizeof mine->host - 1);
    std::string name;
    COLLC_RETURN_IF_FAILED(choose_public_address(&mine->place, interface.empty() ? nullptr : interface.c_str(), &name));
    if (mine->place.family == 0) return fail(ncclSystemError, "no network interface is up: other machines are out of reach");
    std::strncpy(mine->interface, name.c_str(), sizeof mine->interface - 1);
    mine->streams = streams_;
    mine->mbits = mbits_of(mine->interface);
    return {};
  }

  std::vector<std::string> interfaces_;  // lists of them, a rail each
  uint32_t streams_;
  bool tls_;
  const char *above_;
  std::shared_ptr<TcpDoors> doors_;
};

}  // namespace

std::unique_ptr<WireEngine> make_tcp_engine(const std::vector<std::string> &interfaces, uint32_t streams, bool tls,
                                            const char *above) {
  return std::make_unique<TcpEngine>(interfaces, streams, tls, above);
}

}  // namespace collc
