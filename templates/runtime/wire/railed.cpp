#include "wire/railed.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"

namespace collc {
namespace {

// Bytes that are queued on a rail, or in the kernel, cannot be moved to another rail.
constexpr uint64_t kMostRailQueued = 128 << 10;
constexpr int kMostHeldBack = 64 << 10;
constexpr uint32_t kProbeBytes = 64 << 10;
constexpr int64_t kAliveMs = 200;     // interval of signs of life on a rail
constexpr int64_t kQuietMs = 500;     // without a sign of life on any rail for this long, no rail is judged
constexpr int64_t kLostMs = 1000;     // a rail is lost after this long without a sign of life, while others have them
constexpr int64_t kDeadMs = 2000;  // the machine is lost: its system ended a rail, and the others are silent for this long
constexpr int64_t kLateMs = 1000;  // a rail is lost if one piece takes this long while another rail is kLateTimes as fast
constexpr double kLateTimes = 10;
constexpr int64_t kRetryMs = 1000;  // interval of attempts to connect a lost rail
constexpr int64_t kSilentMs = 2000;  // without a sign of life on any rail for this long, the spare is connected
constexpr int64_t kAnsweredMs = 300;  // wait for the rails after the spare answers: a stopped peer resumes on them, too
constexpr int64_t kAttemptMs = 2000;  // limit for each attempt
constexpr int64_t kUnusedMs = 250;  // a rail without messages for this long gets a probe, if others are in use
constexpr int64_t kFirstMs = 100;  // wait for the first probes before chunks are sent
constexpr size_t kPast = 8;  // number of earlier connections that are remembered
constexpr uint64_t kNever = UINT64_MAX;

bool is_of_one_connection(WireKind kind) { return kind == WireKind::kAlive || kind == WireKind::kResume; }

}  // namespace

// Receives the messages of one rail. The bodies of control messages first come into this object, because another rail may
// bring the same message.
class RailedConnection::RailSink final : public WireSink {
 public:
  RailSink(RailedConnection &owner, uint32_t rail) : owner_(owner), rail_(rail), room_(kProbeBytes) {}
  Status place(const WireHead &head, char **body) override { return note(owner_.place(rail_, head, body)); }
  Status take(const WireHead &head) override { return note(owner_.take(rail_, head)); }
  char *room() { return room_.data(); }

 private:
  Status note(Status status) {
    owner_.broken_ |= !status.ok();
    return status;
  }

  RailedConnection &owner_;
  uint32_t rail_;
  std::vector<char> room_;
};

RailedConnection::RailedConnection(std::shared_ptr<const TcpParty> party, std::shared_ptr<TcpDoors> doors, uint32_t machine,
                                   std::vector<TcpDoors::Visitor> made, const std::vector<uint64_t> &attempts, double silence)
    : party_(std::move(party)),
      doors_(std::move(doors)),
      machine_(machine),
      silence_(silence),
      name_(party_->name_of(machine)),
      rails_(made.size()),
      rates_(made.size()),
      made_ms_(now_ms()),
      probe_(kProbeBytes),
      states_(made.size()) {
  const bool has_spare = party_->is_spare(made.size() - 1) && made.back().attempt != 0;
  const std::string meanwhile = has_spare ? party_->describe_rail(machine, party_->nrails()) + " is used" : "the others go on";
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    Rail &rail = rails_[k];
    rail.speed = party_->speed(machine, k);
    rail.sink = std::make_unique<RailSink>(*this, k);
    if (machine < party_->self()) rail.caller = std::make_unique<TcpCaller>(party_, machine, k, attempts[k]);
    const bool made_none = made[k].attempt == 0;
    if (!made_none) open(k, std::move(made[k]));
    if (made_none && !party_->is_spare(k))
      log(LogLevel::kWarn, "%s from %s does not come; it is tried again, and %s", party_->describe_rail(machine_, k).c_str(),
          party_->name_of(party_->self(), k).c_str(), meanwhile.c_str());
  }
  speak_over(best_rail());
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    if (rails_[k].tcp == nullptr) continue;
    send(wire_head(WireKind::kRailOpen, k, rails_[k].generation), nullptr);
    probe(k);
  }
}

RailedConnection::~RailedConnection() = default;

uint32_t RailedConnection::nopen() const {
  return static_cast<uint32_t>(
      std::count_if(rails_.begin(), rails_.end(), [](const Rail &rail) { return rail.tcp != nullptr; }));
}

void RailedConnection::send(const WireHead &head, const void *body) {
  kept_.push_back({head, body});
  kept_bytes_ += sizeof head + head.bytes;
  if (rails_[speaker_].tcp != nullptr) rails_[speaker_].tcp->send_first(head, body);
}

void RailedConnection::speak_over(uint32_t rail) {
  speaker_ = rail;
  rails_[rail].tcp->send_first(wire_head(WireKind::kResume, 0, acknowledged_), nullptr);
  for (const Kept &kept : kept_) rails_[rail].tcp->send_first(kept.head, kept.body);
}

RailPiece RailedConnection::choose(uint32_t bytes, uint32_t left) {
  if (!ready_) return {};
  states_.resize(rails_.size());
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    const Rail &rail = rails_[k];
    states_[k] = {may_send(rail) ? rates_[k] : 0, rail.load.bytes(), false};
    states_[k].full = states_[k].rate > 0 && (rail.tcp->queued_bytes() >= kMostRailQueued || rail.load.is_full(rates_[k]));
  }
  return choose_piece(states_, bytes, left);
}

RailTicket RailedConnection::send_on(uint32_t rail, const WireHead &head, const void *body) {
  used_ms_ = now_ms();
  return put(rail, head, body);
}

RailTicket RailedConnection::put(uint32_t rail, const WireHead &head, const void *body) {
  Rail &one = rails_[rail];
  WireHead stamped = head;
  stamped.kind |= kOnRail;
  if (one.load.is_busy()) stamped.extra |= kFollows;
  one.tcp->send(stamped, body);
  one.load.send(head.bytes, now_us());
  one.used_ms = now_ms();
  return {rail, one.generation, one.load.sent()};
}

void RailedConnection::probe(uint32_t rail) { put(rail, wire_head(WireKind::kProbe, 0, 0, 0, kProbeBytes), probe_.data()); }

bool RailedConnection::has_arrived(const RailTicket &ticket) const {
  const Rail &rail = rails_[ticket.rail];
  if (ticket.generation == rail.generation && ticket.number <= rail.load.arrived()) return true;
  const auto past = rail.past.find(ticket.generation);
  return past != rail.past.end() && ticket.number <= past->second;
}

bool RailedConnection::drained() {
  return kept_.empty() && std::all_of(rails_.begin(), rails_.end(),
                                      [](const Rail &rail) { return rail.tcp == nullptr || rail.load.bytes() == 0; });
}

void RailedConnection::add_to(std::vector<pollfd> *polled) const {
  for (const Rail &rail : rails_)
    if (rail.tcp != nullptr) rail.tcp->add_to(polled);
}

Status RailedConnection::place(uint32_t k, const WireHead &head, char **body) {
  Rail &rail = rails_[k];
  if ((head.kind & kOnRail) == 0) {
    if (head.bytes > kSmallWireBody)
      return fail(ncclInternalError, "it sent a message of %u bytes beside its rails", head.bytes);
    *body = rail.sink->room();
    return {};
  }
  const bool probe = kind_of(head) == WireKind::kProbe;
  rail.probing = probe;
  rail.rate.begin(now_us(), head.bytes, static_cast<uint32_t>(rail.tcp->at_hand()), (head.extra & kFollows) != 0, probe);
  if (probe && head.bytes <= kProbeBytes) {
    *body = rail.sink->room();
    return {};
  }
  return sink_->place(head, body);
}

Status RailedConnection::take(uint32_t k, const WireHead &head) {
  Rail &rail = rails_[k];
  if ((head.kind & kOnRail) == 0) return is_of_one_connection(kind_of(head)) ? take_own(rail, head) : take_control(rail, head);
  ++rail.came;
  rail.rate.end(now_us());
  return kind_of(head) == WireKind::kProbe ? Status() : sink_->take(head);
}

Status RailedConnection::take_own(Rail &rail, const WireHead &head) {
  const auto wrong = [&head] { return fail(ncclInternalError, "it sent numbers that cannot be (kind %u)", head.kind); };
  if (kind_of(head) == WireKind::kResume) {
    if (head.number > heard_) return wrong();
    rail.next_control = head.number;
    return {};
  }
  if (head.number > rail.load.sent() || head.tag > queued()) return wrong();
  rail.load.arrive(head.number, head.object / 1e3, now_us());
  for (; acknowledged_ < head.tag; ++acknowledged_, kept_.pop_front())
    kept_bytes_ -= sizeof(WireHead) + kept_.front().head.bytes;
  return {};
}

Status RailedConnection::take_control(Rail &rail, const WireHead &head) {
  const uint64_t number = rail.next_control;
  if (number == kNever || number > heard_) return fail(ncclInternalError, "it left messages out (kind %u)", head.kind);
  ++rail.next_control;
  if (number < heard_) return {};  // it has already come over another rail
  ++heard_;
  switch (kind_of(head)) {
    case WireKind::kRailLost:
    case WireKind::kRailOpen:
      return take_about_rail(head);
    default:
      break;
  }
  if (head.bytes > 0) {
    char *body = nullptr;
    COLLC_RETURN_IF_FAILED(sink_->place(head, &body));
    std::memcpy(body, rail.sink->room(), head.bytes);
  }
  return sink_->take(head);
}

Status RailedConnection::take_about_rail(const WireHead &head) {
  if (head.object >= rails_.size()) return fail(ncclInternalError, "it sent a message about rail %u", head.object);
  Rail &rail = rails_[head.object];
  if (kind_of(head) == WireKind::kRailOpen) {
    rail.open_there = head.number;
    return {};
  }
  rail.past[head.number] = head.tag;
  if (rail.past.size() > kPast) rail.past.erase(rail.past.begin());
  if (rail.generation == head.number) rail.doomed = true;
  ends_.push_back({head.object, head.number, head.tag});
  return {};
}

void RailedConnection::open(uint32_t k, TcpDoors::Visitor visitor) {
  Rail &rail = rails_[k];
  rail.generation = visitor.attempt;
  rail.tcp = party_->connect(machine_, k, std::move(visitor), silence_);
  rail.tcp->hold_back(kMostHeldBack);
  if (party_->nmachines() > 2) rail.tcp->leave_bbr();
  rail.load.reset();
  rail.came = rail.told_came = rail.used_ms = 0;
  rail.next_control = kNever;
  rail.told_ms = 0;
  rail.judged_ms = now_ms();
  rail.doomed = false;
}

// Closes a rail, and reports to the peer how many of its messages have come; no others will.
void RailedConnection::close(uint32_t k, const std::string &why, LogLevel level) {
  Rail &rail = rails_[k];
  if (rail.tcp == nullptr) return;
  log(level, "%s is lost: %s", party_->describe_rail(machine_, k).c_str(), why.c_str());
  rail.tcp.reset();
  rail.rate.stop();
  rail.doomed = false;
  rates_[k] = 0;
  if (nopen() == 0) return;
  if (k == speaker_) speak_over(best_rail());
  send(wire_head(WireKind::kRailLost, k, rail.generation, rail.came), nullptr);
}

uint32_t RailedConnection::best_rail() const {
  uint32_t best = kNoRail;
  for (uint32_t k = 0; k < rails_.size(); ++k)
    if (rails_[k].tcp != nullptr && (best == kNoRail || rates_[k] > rates_[best])) best = k;
  return best;
}

// Connects the spare if all rails are silent. Returns true when the spare is to be used.
bool RailedConnection::call_spare(Rail &rail, int64_t silent_ms) {
  if (silent_ms < kSilentMs) {
    if (rail.caller->calls()) rail.caller->hang_up();
    rail.visitor = {};
    return false;
  }
  if (rail.visitor.attempt == 0 && rail.caller->call(kRetryMs, kAttemptMs, &rail.visitor)) answered_ms_ = now_ms();
  return rail.visitor.attempt != 0 && now_ms() - answered_ms_ > kAnsweredMs;
}

// Connects lost rails again, and the spare when all rails are silent.
void RailedConnection::reopen() {
  doors_->look();
  const int64_t now = now_ms();
  if (now - judged_ms_ > kQuietMs) attended_ms_ = now;
  const int64_t silent_ms = now - std::max(heard_ms(), attended_ms_);
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    Rail &rail = rails_[k];
    const bool spare = party_->is_spare(k);
    if (rail.caller == nullptr) {
      rail.visitor = doors_->take(machine_, k);
      if (rail.visitor.attempt == 0 || (spare && silent_ms < kQuietMs)) continue;
      close(k, "the other machine calls again", LogLevel::kInfo);
    } else if (rail.tcp != nullptr) {
      continue;
    } else if (!spare) {
      rail.caller->call(kRetryMs, kAttemptMs, &rail.visitor);
    } else if (!call_spare(rail, silent_ms)) {
      continue;
    }
    if (rail.visitor.attempt == 0) continue;
    open(k, std::exchange(rail.visitor, {}));
    send(wire_head(WireKind::kRailOpen, k, rail.generation), nullptr);
    log(spare && silent_ms > kQuietMs ? LogLevel::kWarn : LogLevel::kInfo, "%s is %s",
        party_->describe_rail(machine_, k).c_str(),
        spare ? format("used: nothing has come over rails for %.1f s", silent_ms / 1e3).c_str() : "back");
  }
}

Status RailedConnection::move(WireSink &sink, bool *moved) {
  sink_ = &sink;
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    if (rails_[k].tcp == nullptr) continue;
    bool ended = false;
    const Status status = rails_[k].tcp->progress(*rails_[k].sink, moved, &ended);
    if (broken_) return status;
    if (status.ok()) continue;
    last_ = status;
    last_ended_ = ended;
    if (ended && !party_->is_spare(k)) ended_ms_ = now_ms();
    close(k, status.text(), ended ? LogLevel::kInfo : LogLevel::kWarn);
  }
  for (uint32_t k = 0; k < rails_.size(); ++k)
    if (rails_[k].doomed && nopen() > 1) close(k, "the other machine has closed it", LogLevel::kInfo);
  return {};
}

// Closes rails that are silent, or too slow for the piece that is arriving, as long as there are others.
void RailedConnection::judge() {
  const int64_t now = now_ms(), heard = heard_ms();
  // If nothing comes at all, or nothing was read for a while, the silence of a rail counts only from now on.
  if (now - heard > kQuietMs || now - judged_ms_ > kQuietMs)
    for (Rail &rail : rails_) rail.judged_ms = now;
  judged_ms_ = now;
  for (uint32_t k = 0; k < rails_.size() && nopen() > 1; ++k) {
    Rail &rail = rails_[k];
    if (rail.tcp == nullptr) continue;
    if (now - std::max(rail.tcp->heard_ms(), rail.judged_ms) > kLostMs) {
      close(k, format("nothing comes over it, and something over others, for %.1f s", kLostMs / 1e3), LogLevel::kWarn);
      continue;
    }
    double most = 0;
    for (const Rail &other : rails_) most = std::max(most, other.tcp != nullptr ? other.rate.rate(now_us()) : 0);
    if (rail.probing || rail.rate.coming_us(now_us()) < kLateMs * 1000 || rail.rate.rate(now_us()) * kLateTimes > most)
      continue;
    rail.rate.end(now_us());
    close(k, "it has become too slow for what is on it", LogLevel::kWarn);
  }
}

// Sends signs of life, which report how many messages have come.
void RailedConnection::acknowledge() {
  const int64_t now = now_ms();
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    Rail &rail = rails_[k];
    if (rail.tcp == nullptr) continue;
    const bool news = rail.came != rail.told_came || (k == speaker_ && heard_ != told_heard_);
    if (!news && now - rail.told_ms < kAliveMs) continue;
    const auto rate = static_cast<uint32_t>(std::clamp(rail.rate.rate(now_us()) * 1e3, 0.0, 4e9));
    rail.tcp->send_first(wire_head(WireKind::kAlive, rate, rail.came, heard_), nullptr);
    rail.told_came = rail.came;
    rail.told_ms = now;
    if (k == speaker_) told_heard_ = heard_;
  }
}

void RailedConnection::measure() {
  const int64_t now = now_ms(), us = now_us();
  std::vector<double> measured, speeds;
  std::vector<bool> open;
  bool all_known = true;
  for (const Rail &rail : rails_) {
    measured.push_back(rail.load.rate(us));
    speeds.push_back(rail.speed);
    open.push_back(rail.tcp != nullptr);
    all_known &= rail.tcp == nullptr || rail.load.arrived() > 0;
  }
  // The first probes say more than the speeds that interfaces report.
  ready_ |= all_known || now - made_ms_ > kFirstMs;
  if (!ready_) return;
  rates_ = compare_rates(measured, speeds, open);
  // One probe at a time, because a slow rail has enough to do with it.
  for (uint32_t k = 0; k < rails_.size(); ++k)
    if (may_send(rails_[k]) && rails_[k].load.bytes() == 0 && now - used_ms_ < kUnusedMs && now - rails_[k].used_ms > kUnusedMs)
      probe(k);
  // All control messages have arrived, so the peer reads none from the old rail any more.
  const uint32_t best = best_rail();
  if (best != kNoRail && kept_.empty() && best != speaker_ && rates_[best] > 2 * rates_[speaker_]) speak_over(best);
}

Status RailedConnection::progress(WireSink &sink, bool *moved, bool *ended) {
  reopen();
  COLLC_RETURN_IF_FAILED(move(sink, moved));
  // The peer's system has ended one rail, and the other rails are silent: they may be cut, and the process of the peer gone.
  const bool dead = ended_ms_ != 0 && heard_ms() < ended_ms_ && now_ms() - ended_ms_ > kDeadMs;
  if (nopen() == 0 || dead) {
    *ended = last_ended_;
    return last_;
  }
  judge();
  measure();
  acknowledge();
  return {};
}

}  // namespace collc
