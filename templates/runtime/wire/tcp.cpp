// The engine of plain sockets: machines connect over one interface, or over each of several.
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
#include "wire/cards.h"
#include "wire/railed.h"
#include "wire/tcp_connection.h"
#include "wire/tcp_party.h"

namespace collc {
namespace {

constexpr int kSliceMs = 20;  // interval between two polls of WireMeeting::stop
constexpr int64_t kPauseMs = 30;  // between two attempts
constexpr int64_t kRailsMs = 1000;  // after this long with a rail to each machine, the other rails may come later
// After this long without any rail, the spare is tried; the kernel has sent its request twice by then.
constexpr int64_t kSpareMs = 2000;
constexpr int64_t kAnswerMs =
    5000;  // limit for an answer if there is a spare; a later answer cannot come from one of our machines

bool contains(const std::vector<std::string> &names, const std::string &name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// An interface of a NIC that the topology or a variable names.
struct CardInterface {
  std::string name;
  uint32_t card;  // number of the NIC, counted from 1
  uint32_t fabric;  // as Card::network
};

const CardInterface *find_card(const std::vector<CardInterface> &cards, const std::string &name) {
  const auto found = std::find_if(cards.begin(), cards.end(), [&name](const CardInterface &one) { return one.name == name; });
  return found == cards.end() ? nullptr : &*found;
}

class TcpMeeting {
 public:
  TcpMeeting(const WireMeeting &meeting, std::shared_ptr<TcpDoors> doors, bool tls)
      : meeting_(meeting), doors_(std::move(doors)), tls_(tls) {}

  Status run(std::vector<std::unique_ptr<WireConnection>> *made) {
    const auto party = std::make_shared<TcpParty>();
    COLLC_RETURN_IF_FAILED(party->read(meeting_, tls_));
    party_ = party;
    if (party_->nrails() > 1 || party_->told() > 1) log(LogLevel::kInfo, "%s", describe_rails().c_str());
    doors_->expect(party_);
    made_.resize(party_->nmachines());
    for (auto &ways : made_) ways.resize(party_->nways());
    std::vector<TcpCaller> callers;
    for (uint32_t to = 0; to < meeting_.self; ++to)
      for (uint32_t way = 0; way < party_->nways(); ++way) callers.emplace_back(party_, to, way, 0);
    begun_ms_ = now_ms();
    const int64_t deadline = begun_ms_ + static_cast<int64_t>(meeting_.seconds * 1000);
    int64_t joined_ms = 0;  // since when there is a rail to each machine
    while (!complete()) {
      if (joined_ms == 0 && joined()) joined_ms = now_ms();
      if (joined_ms != 0 && now_ms() - joined_ms > kRailsMs) break;
      if (meeting_.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
      if (now_ms() >= deadline) return too_late_to_meet();
      look(callers);
    }
    connect(callers, made);
    for (TcpCaller &caller : callers) caller.hang_up();
    return {};
  }

 private:
  std::string describe_rails() const {
    std::string text = format("%zu of %zu interfaces join machines, with %u connections each:",
                              size_t{party_->nrails() / party_->address(meeting_.self, 0).streams}, party_->told(),
                              party_->address(meeting_.self, 0).streams);
    for (uint32_t rail = 0; rail < party_->nrails(); rail += party_->address(meeting_.self, 0).streams)
      text += format(" %s%s", party_->address(meeting_.self, rail).interface,
                     party_->address(meeting_.self, rail).card != 0 ? " (of the library's topology)" : "");
    return text;
  }

  // Returns whether a connection attempt may begin or go on. Of a rail and the spare, only one may have sent a hello at a
  // time, so that both ends know which of them joins the machines.
  bool may_call(const std::vector<TcpCaller> &callers, const TcpCaller &caller) const {
    const bool spare = party_->is_spare(caller.rail());
    if (made_[caller.to()][caller.rail()].attempt != 0) return false;
    if (spare && (has_rail(caller.to()) || !(caller.calls() || is_time_for_spare(callers, caller.to())))) return false;
    return caller.waits() || std::none_of(callers.begin(), callers.end(), [&](const TcpCaller &other) {
             return other.to() == caller.to() && party_->is_spare(other.rail()) != spare && other.waits();
           });
  }

  // Returns whether no rail accepts a connection: all are refused, or the meeting has taken a while.
  bool is_time_for_spare(const std::vector<TcpCaller> &callers, uint32_t to) const {
    return now_ms() - begun_ms_ >= kSpareMs || std::all_of(callers.begin(), callers.end(), [&](const TcpCaller &other) {
             return other.to() != to || party_->is_spare(other.rail()) || other.is_refused();
           });
  }

  void look(std::vector<TcpCaller> &callers) {
    const int64_t asked_ms = now_ms();
    std::vector<pollfd> polled;
    doors_->add_to(&polled);
    const size_t accepting = polled.size();
    for (TcpCaller &caller : callers) {
      if (!may_call(callers, caller)) {
        if (party_->is_spare(caller.rail()) && has_rail(caller.to())) caller.hang_up();
        polled.push_back({-1, 0, 0});
        continue;
      }
      caller.prepare(kPauseMs);
      caller.add_to(&polled);
    }
    const bool known = poll(polled.data(), polled.size(), kSliceMs) >= 0;
    for (pollfd &one : polled)
      if (!known) one.revents = 0;
    const pollfd *at = polled.data();
    doors_->handle_events(&at);
    for (uint32_t m = meeting_.self + 1; m < made_.size(); ++m)
      for (uint32_t rail = 0; rail < party_->nways(); ++rail) {
        TcpDoors::Visitor visitor = doors_->take(m, rail);
        if (visitor.attempt != 0) made_[m][rail] = std::move(visitor);
      }
    for (size_t i = 0; i < callers.size(); ++i) {
      TcpDoors::Visitor &made = made_[callers[i].to()][callers[i].rail()];
      // Connections that were made earlier in this round may forbid another hello.
      if (polled[accepting + i].revents != 0) {
        if (may_call(callers, callers[i]) && callers[i].advance(&made.fd)) made.attempt = callers[i].attempt();
      } else if (known && has_spare()) {
        // Without a spare no limit applies to an attempt, because the other process may be stopped, and the connection that
        // it accepts last counts.
        callers[i].give_up(kAnswerMs, asked_ms);
      }
      if (!callers[i].last().empty()) last_ = callers[i].last();
    }
  }

  bool has_spare() const { return party_->nways() > party_->nrails(); }

  bool has_rail(size_t machine) const {
    const auto begin = made_[machine].begin();
    return std::any_of(begin, begin + party_->nrails(), [](const auto &one) { return one.attempt != 0; });
  }

  bool is_complete(size_t machine) const {
    const auto begin = made_[machine].begin();
    return std::all_of(begin, begin + party_->nrails(), [](const auto &one) { return one.attempt != 0; });
  }

  bool complete() const {
    for (size_t m = 0; m < made_.size(); ++m)
      if (m != meeting_.self && !is_complete(m)) return false;
    return true;
  }

  bool joined() const {
    for (size_t m = 0; m < made_.size(); ++m)
      if (m != meeting_.self &&
          std::none_of(made_[m].begin(), made_[m].end(), [](const auto &one) { return one.attempt != 0; }))
        return false;
    return true;
  }

  // Names the missing connections by the interfaces at both ends.
  Status too_late_to_meet() const {
    std::string missing;
    uint32_t first = kNoRail;
    for (uint32_t m = 0; m < made_.size(); ++m)
      for (uint32_t rail = 0; m != meeting_.self && rail < made_[m].size(); ++rail) {
        if (made_[m][rail].attempt != 0 || (party_->is_spare(rail) && has_rail(m))) continue;
        missing += (missing.empty() ? "" : ", ") + party_->name_of(m, rail);
        first = std::min(first, rail);
      }
    return fail(ncclSystemError, "no connection after %.0f s from %s with %s%s", meeting_.seconds,
                party_->name_of(meeting_.self, first).c_str(), missing.c_str(),
                last_.empty() ? ": is a firewall between, or is COLLC_NET wrong?" : (" (" + last_ + ")").c_str());
  }

  void connect(const std::vector<TcpCaller> &callers, std::vector<std::unique_ptr<WireConnection>> *made) {
    std::vector<std::vector<uint64_t>> attempts(made_.size(), std::vector<uint64_t>(party_->nways()));
    for (const TcpCaller &caller : callers) attempts[caller.to()][caller.rail()] = caller.attempt();
    made->clear();
    made->resize(made_.size());
    for (uint32_t m = 0; m < made_.size(); ++m) {
      if (m == meeting_.self) continue;
      // Both ends know the number of rails, but not which of them the other end has by now.
      if (party_->nways() > 1) {
        (*made)[m] = std::make_unique<RailedConnection>(party_, doors_, m, std::move(made_[m]), attempts[m], meeting_.silence);
        continue;
      }
      auto one = party_->connect(m, 0, std::move(made_[m][0]), meeting_.silence);
      if (party_->nmachines() > 2) one->share_link();
      (*made)[m] = std::move(one);
    }
  }

  const WireMeeting &meeting_;
  std::shared_ptr<TcpDoors> doors_;
  bool tls_;
  std::shared_ptr<const TcpParty> party_;
  std::vector<std::vector<TcpVisitor>> made_;  // by machine and rail
  std::string last_;  // why the last attempt failed
  int64_t begun_ms_ = 0;
};

class TcpEngine final : public WireEngine {
 public:
  TcpEngine(const TcpInterfaces &interfaces, const WirePlace &place, uint32_t streams, bool tls, const char *above)
      : interfaces_(interfaces), place_(place), streams_(streams), tls_(tls), above_(above) {}
  const char *name() const override { return "tcp"; }

  Status listen(Bytes *address) override {
    unsigned char challenge[sizeof(TcpAddress::challenge)];
    COLLC_RETURN_IF_FAILED(random_bytes(challenge, sizeof challenge));
    std::vector<TcpAddress> own;
    COLLC_RETURN_IF_FAILED(interfaces_.lists.empty() ? find_own(&own) : name_own(&own));
    if (own.size() > 1 && own[0].wish != TcpWish::kNet) {
      own.push_back(own[0]);
      own.back().wish = TcpWish::kSpare;
    }
    for (TcpAddress &mine : own) std::memcpy(mine.challenge, challenge, sizeof challenge);
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
  // One rail for each list.
  Status name_own(std::vector<TcpAddress> *own) const {
    for (const std::string &list : interfaces_.lists) {
      PublicInterface found;
      COLLC_RETURN_IF_FAILED(choose_public_address(&found.place, list.empty() ? nullptr : list.c_str(), &found.name));
      if (found.place.family == 0) return nowhere();
      for (const TcpAddress &other : *own)
        if (found.name == other.interface)
          return fail(ncclInvalidUsage, "COLLC_NET names the interface %s twice", other.interface);
      own->push_back(address_of(found, TcpWish::kNet));
    }
    return {};
  }

  Status find_own(std::vector<TcpAddress> *own) const {
    std::vector<PublicInterface> found, named;
    COLLC_RETURN_IF_FAILED(find_public_interfaces(&found));
    if (found.empty()) return nowhere();
    COLLC_RETURN_IF_FAILED(find_running_interfaces(interfaces_.named, &named));
    if (named.empty() && !interfaces_.named.empty())
      log(LogLevel::kInfo,
          "no interface of the devices that NCCL_IB_HCA names is up and has an address: the usual ones are used");
    const bool asked = found[0].asked && named.empty();
    const auto barred = [this](const PublicInterface &one) { return !one.asked && contains(interfaces_.barred, one.name); };
    found.erase(std::remove_if(found.begin() + 1, found.end(), barred), found.end());
    const std::vector<CardInterface> known = find_cards();
    std::vector<CardInterface> cards;
    if (!named.empty()) {
      // Of the others only the usual interface remains: the one on which machines meet if some have none of the named
      // interfaces.
      found.resize(1);
      for (size_t i = 0; i < interfaces_.named.size(); ++i) cards.push_back({interfaces_.named[i], interfaces_.places[i], 0});
    } else if (!asked) {
      for (const CardInterface &one : known)
        if (!contains(interfaces_.barred, one.name)) cards.push_back(one);
    }
    COLLC_RETURN_IF_FAILED(add_cards(cards, &found));
    found.resize(std::min<size_t>(found.size(), kMostRails / streams_));
    for (const PublicInterface &one : found) {
      const CardInterface *const card = find_card(cards, one.name), *const of_topology = find_card(known, one.name);
      const TcpWish nobody = card != nullptr ? TcpWish::kCard : TcpWish::kNobody;
      own->push_back(address_of(one, asked ? TcpWish::kList : nobody));
      if (card != nullptr) own->back().card = card->card;
      if (of_topology != nullptr) own->back().fabric = of_topology->fabric;
    }
    return {};
  }

  // Returns the interfaces of the topology's NICs, in its order: one for each NIC, or several if its bus id belongs to
  // several.
  std::vector<CardInterface> find_cards() const {
    std::vector<CardInterface> found;
    for (size_t i = 0; i < place_.cards.size(); ++i)
      for (const std::string &name : find_interfaces(place_.cards[i], kSysFolder))
        if (find_card(found, name) == nullptr) found.push_back({name, static_cast<uint32_t>(i) + 1, place_.cards[i].network});
    return found;
  }

  // Inserts these NICs after the usual interface, before the others like it.
  static Status add_cards(const std::vector<CardInterface> &all, std::vector<PublicInterface> *found) {
    std::vector<std::string> names;
    for (const CardInterface &one : all)
      if (one.name != (*found)[0].name) names.push_back(one.name);
    std::vector<PublicInterface> cards;
    COLLC_RETURN_IF_FAILED(find_running_interfaces(names, &cards));
    const auto is_card = [&names](const PublicInterface &one) { return contains(names, one.name); };
    found->erase(std::remove_if(found->begin() + 1, found->end(), is_card), found->end());
    found->insert(found->begin() + 1, cards.begin(), cards.end());
    return {};
  }

  static Status nowhere() { return fail(ncclSystemError, "no network interface is up: other machines are out of reach"); }

  TcpAddress address_of(const PublicInterface &found, TcpWish wish) const {
    TcpAddress mine = {};
    std::strncpy(mine.engine, above_, sizeof mine.engine - 1);
    gethostname(mine.host, sizeof mine.host - 1);
    mine.place = found.place;
    std::strncpy(mine.interface, found.name.c_str(), sizeof mine.interface - 1);
    mine.streams = streams_;
    mine.mbits = speed_of_interface(found.name);
    mine.far = far_from_gpus(found.name, place_.gpus, kSysFolder);
    mine.prefix = found.prefix;
    mine.wish = wish;
    return mine;
  }

  TcpInterfaces interfaces_;
  WirePlace place_;
  uint32_t streams_;
  bool tls_;
  const char *above_;
  std::shared_ptr<TcpDoors> doors_;
};

}  // namespace

std::unique_ptr<WireEngine> make_tcp_engine(const TcpInterfaces &interfaces, const WirePlace &place, uint32_t streams, bool tls,
                                            const char *above) {
  return std::make_unique<TcpEngine>(interfaces, place, streams, tls, above);
}

}  // namespace collc
