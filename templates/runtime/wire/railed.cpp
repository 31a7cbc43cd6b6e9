#include "wire/railed.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"

namespace collc {
namespace {

// Bytes that are queued on a rail, or in the kernel, cannot be moved to another rail.
constexpr uint64_t kMaxRailQueuedBytes = 128 << 10;
constexpr int kMaxUnsentRailBytes = 64 << 10;
constexpr uint32_t kProbeBytes = 64 << 10;
constexpr int64_t kAliveMs = 200;     // interval of signs of life on a rail
constexpr int64_t kQuietMs = 500;     // without a sign of life on any rail for this long, no rail is judged
constexpr int64_t kLostMs = 1000;     // a rail is lost after this long without a sign of life, while others have them
constexpr int64_t kDeadMs = 2000;  // the machine is lost: its system ended a rail, and the others are silent for this long
constexpr int64_t kLateMs = 1000;  // a rail is lost if a piece takes this long while another is kLateRatio times as fast
constexpr double kLateRatio = 10;
constexpr int64_t kRetryMs = 1000;  // interval of attempts to connect a lost rail
constexpr int64_t kSilentMs = 2000;  // without a sign of life on any rail for this long, the spare is connected
constexpr int64_t kAnsweredMs = 300;  // wait for the rails after the spare answers: a stopped peer resumes on them, too
constexpr int64_t kAttemptMs = 2000;  // limit for each attempt
constexpr int64_t kUnusedMs = 250;  // a rail without messages for this long gets a probe, if others are in use
constexpr int64_t kFirstMs = 100;  // wait for the first probes before chunks are sent
constexpr size_t kEarlierConnections = 8;  // number of earlier connections that are remembered
constexpr uint64_t kNever = UINT64_MAX;

bool is_report(WireKind kind) { return kind == WireKind::kAlive || kind == WireKind::kResume; }

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
    owner_.is_invalid_ |= !status.ok();
    return status;
  }

  RailedConnection &owner_;
  uint32_t rail_;
  std::vector<char> room_;
};

RailedConnection::RailedConnection(std::shared_ptr<const TcpPeers> peers, std::shared_ptr<TcpListeners> listeners,
                                   uint32_t machine, std::vector<TcpSocket> sockets, const std::vector<uint64_t> &attempts,
                                   double silence)
    : peers_(std::move(peers)),
      listeners_(std::move(listeners)),
      machine_(machine),
      silence_(silence),
      name_(peers_->name_of(machine)),
      rails_(sockets.size()),
      rates_(sockets.size()),
      start_ms_(now_ms()),
      probe_(kProbeBytes),
      states_(sockets.size()) {
  const bool has_spare = peers_->is_spare(sockets.size() - 1) && sockets.back().attempt != 0;
  const std::string rest = has_spare ? peers_->describe_rail(machine, peers_->nrails()) + " is used" : "the others go on";
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    Rail &rail = rails_[k];
    rail.speed = peers_->speed(machine, k);
    rail.sink = std::make_unique<RailSink>(*this, k);
    if (machine < peers_->self()) rail.connector = std::make_unique<TcpConnector>(peers_, machine, k, attempts[k]);
    const bool is_missing = sockets[k].attempt == 0;
    if (!is_missing) open(k, std::move(sockets[k]));
    if (is_missing && !peers_->is_spare(k))
      log(LogLevel::kWarn, "%s from %s does not come; it is tried again, and %s", peers_->describe_rail(machine_, k).c_str(),
          peers_->name_of(peers_->self(), k).c_str(), rest.c_str());
  }
  switch_control_rail(best_rail());
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    if (rails_[k].tcp == nullptr) continue;
    send(wire_head(WireKind::kRailOpen, k, rails_[k].generation), nullptr);
    probe(k);
  }
}

RailedConnection::~RailedConnection() = default;

uint32_t RailedConnection::nopen() const {
  return static_cast<uint32_t>(std::count_if(rails_.begin(), rails_.end(), [](const Rail &r) { return r.tcp != nullptr; }));
}

void RailedConnection::send(const WireHead &head, const void *body) {
  pending_.push_back({head, body});
  pending_bytes_ += sizeof head + head.bytes;
  if (rails_[control_rail_].tcp != nullptr) rails_[control_rail_].tcp->send_urgent(head, body);
}

void RailedConnection::switch_control_rail(uint32_t rail) {
  control_rail_ = rail;
  rails_[rail].tcp->send_urgent(wire_head(WireKind::kResume, 0, acknowledged_), nullptr);
  for (const PendingMessage &pending : pending_) rails_[rail].tcp->send_urgent(pending.head, pending.body);
}

RailPiece RailedConnection::choose(uint32_t bytes, uint32_t left) {
  if (!rates_known_) return {};
  states_.resize(rails_.size());
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    const Rail &rail = rails_[k];
    states_[k] = {may_send(rail) ? rates_[k] : 0, rail.load.bytes(), false};
    states_[k].full = states_[k].rate > 0 && (rail.tcp->queued_bytes() >= kMaxRailQueuedBytes || rail.load.is_full(rates_[k]));
  }
  return choose_piece(states_, bytes, left);
}

RailTicket RailedConnection::send_on(uint32_t rail, const WireHead &head, const void *body) {
  send_ms_ = now_ms();
  return put(rail, head, body);
}

RailTicket RailedConnection::put(uint32_t rail, const WireHead &head, const void *body) {
  Rail &rail_state = rails_[rail];
  WireHead stamped = head;
  stamped.kind |= kOnRail;
  if (rail_state.load.is_busy()) stamped.extra |= kFollows;
  rail_state.tcp->send(stamped, body);
  rail_state.load.send(head.bytes, now_us());
  rail_state.send_ms = now_ms();
  return {rail, rail_state.generation, rail_state.load.sent()};
}

void RailedConnection::probe(uint32_t rail) { put(rail, wire_head(WireKind::kProbe, 0, 0, 0, kProbeBytes), probe_.data()); }

bool RailedConnection::has_arrived(const RailTicket &ticket) const {
  const Rail &rail = rails_[ticket.rail];
  if (ticket.generation == rail.generation && ticket.number <= rail.load.arrived()) return true;
  const auto entry = rail.earlier_arrived.find(ticket.generation);
  return entry != rail.earlier_arrived.end() && ticket.number <= entry->second;
}

bool RailedConnection::drained() {
  return pending_.empty() && std::all_of(rails_.begin(), rails_.end(),
                                         [](const Rail &rail) { return rail.tcp == nullptr || rail.load.bytes() == 0; });
}

void RailedConnection::add_to(std::vector<pollfd> *polled) const {
  for (const Rail &rail : rails_)
    if (rail.tcp != nullptr) rail.tcp->add_to(polled);
}

Status RailedConnection::place(uint32_t k, const WireHead &head, char **body) {
  Rail &rail = rails_[k];
  if ((head.kind & kOnRail) == 0) {
    if (head.bytes > kSmallWireBody) return fail(ncclInternalError, "it sent a control message of %u bytes", head.bytes);
    *body = rail.sink->room();
    return {};
  }
  const bool probe = kind_of(head) == WireKind::kProbe;
  rail.is_probing = probe;
  rail.rate.begin(now_us(), head.bytes, static_cast<uint32_t>(rail.tcp->buffered_bytes()), (head.extra & kFollows) != 0, probe);
  if (probe && head.bytes <= kProbeBytes) {
    *body = rail.sink->room();
    return {};
  }
  return sink_->place(head, body);
}

Status RailedConnection::take(uint32_t k, const WireHead &head) {
  Rail &rail = rails_[k];
  if ((head.kind & kOnRail) == 0) return is_report(kind_of(head)) ? take_report(rail, head) : take_control(rail, head);
  ++rail.arrived;
  rail.rate.end(now_us());
  return kind_of(head) == WireKind::kProbe ? Status() : sink_->take(head);
}

Status RailedConnection::take_report(Rail &rail, const WireHead &head) {
  const auto invalid = [&head] { return fail(ncclInternalError, "it sent impossible numbers (kind %u)", head.kind); };
  if (kind_of(head) == WireKind::kResume) {
    if (head.number > received_) return invalid();
    rail.next_control = head.number;
    return {};
  }
  if (head.number > rail.load.sent() || head.tag > queued()) return invalid();
  rail.load.record_arrivals(head.number, head.object / 1e3, now_us());
  for (; acknowledged_ < head.tag; ++acknowledged_, pending_.pop_front())
    pending_bytes_ -= sizeof(WireHead) + pending_.front().head.bytes;
  return {};
}

Status RailedConnection::take_control(Rail &rail, const WireHead &head) {
  const uint64_t number = rail.next_control;
  if (number == kNever || number > received_)
    return fail(ncclInternalError, "it skipped control messages (kind %u)", head.kind);
  ++rail.next_control;
  if (number < received_) return {};  // it has already come over another rail
  ++received_;
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
    rail.peer_generation = head.number;
    return {};
  }
  rail.earlier_arrived[head.number] = head.tag;
  if (rail.earlier_arrived.size() > kEarlierConnections) rail.earlier_arrived.erase(rail.earlier_arrived.begin());
  if (rail.generation == head.number) rail.is_closed_by_peer = true;
  ends_.push_back({head.object, head.number, head.tag});
  return {};
}

void RailedConnection::open(uint32_t k, TcpSocket socket) {
  Rail &rail = rails_[k];
  rail.generation = socket.attempt;
  rail.tcp = peers_->connect(machine_, k, std::move(socket), silence_);
  rail.tcp->limit_unsent(kMaxUnsentRailBytes);
  if (peers_->nmachines() > 2) rail.tcp->avoid_bbr();
  rail.load.reset();
  rail.arrived = rail.reported_arrived = rail.send_ms = 0;
  rail.next_control = kNever;
  rail.reported_ms = 0;
  rail.judged_ms = now_ms();
  rail.is_closed_by_peer = false;
}

// Closes a rail, and reports to the peer how many of its messages have come; no others will.
void RailedConnection::close(uint32_t k, const std::string &why, LogLevel level) {
  Rail &rail = rails_[k];
  if (rail.tcp == nullptr) return;
  log(level, "%s is lost: %s", peers_->describe_rail(machine_, k).c_str(), why.c_str());
  rail.tcp.reset();
  rail.rate.stop();
  rail.is_closed_by_peer = false;
  rates_[k] = 0;
  if (nopen() == 0) return;
  if (k == control_rail_) switch_control_rail(best_rail());
  send(wire_head(WireKind::kRailLost, k, rail.generation, rail.arrived), nullptr);
}

uint32_t RailedConnection::best_rail() const {
  uint32_t best = kNoRail;
  for (uint32_t k = 0; k < rails_.size(); ++k)
    if (rails_[k].tcp != nullptr && (best == kNoRail || rates_[k] > rates_[best])) best = k;
  return best;
}

// Connects the spare if all rails are silent. Returns true when the spare is to be used.
bool RailedConnection::connect_spare(Rail &rail, int64_t silent_ms) {
  if (silent_ms < kSilentMs) {
    if (rail.connector->is_connecting()) rail.connector->hang_up();
    rail.next_socket = {};
    return false;
  }
  if (rail.next_socket.attempt == 0 && rail.connector->call(kRetryMs, kAttemptMs, &rail.next_socket)) spare_ms_ = now_ms();
  return rail.next_socket.attempt != 0 && now_ms() - spare_ms_ > kAnsweredMs;
}

// Connects lost rails again, and the spare when all rails are silent.
void RailedConnection::reopen() {
  listeners_->poll_now();
  const int64_t now = now_ms();
  if (now - judged_ms_ > kQuietMs) reading_since_ms_ = now;
  const int64_t silent_ms = now - std::max(heard_ms(), reading_since_ms_);
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    Rail &rail = rails_[k];
    const bool is_spare = peers_->is_spare(k);
    if (rail.connector == nullptr) {
      rail.next_socket = listeners_->take(machine_, k);
      if (rail.next_socket.attempt == 0 || (is_spare && silent_ms < kQuietMs)) continue;
      close(k, "the other machine has connected it again", LogLevel::kInfo);
    } else if (rail.tcp != nullptr) {
      continue;
    } else if (!is_spare) {
      rail.connector->call(kRetryMs, kAttemptMs, &rail.next_socket);
    } else if (!connect_spare(rail, silent_ms)) {
      continue;
    }
    if (rail.next_socket.attempt == 0) continue;
    open(k, std::exchange(rail.next_socket, {}));
    send(wire_head(WireKind::kRailOpen, k, rail.generation), nullptr);
    log(is_spare && silent_ms > kQuietMs ? LogLevel::kWarn : LogLevel::kInfo, "%s is %s",
        peers_->describe_rail(machine_, k).c_str(),
        is_spare ? format("used: nothing has come over rails for %.1f s", silent_ms / 1e3).c_str() : "back");
  }
}

Status RailedConnection::move(WireSink &sink, bool *moved) {
  sink_ = &sink;
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    if (rails_[k].tcp == nullptr) continue;
    bool ended = false;
    const Status status = rails_[k].tcp->progress(*rails_[k].sink, moved, &ended);
    if (is_invalid_) return status;
    if (status.ok()) continue;
    last_error_ = status;
    last_ended_ = ended;
    if (ended && !peers_->is_spare(k)) ended_ms_ = now_ms();
    close(k, status.text(), ended ? LogLevel::kInfo : LogLevel::kWarn);
  }
  for (uint32_t k = 0; k < rails_.size(); ++k)
    if (rails_[k].is_closed_by_peer && nopen() > 1) close(k, "the other machine has closed it", LogLevel::kInfo);
  return {};
}

// Closes rails that are silent, or too slow for the piece that is arriving, as long as there are others.
void RailedConnection::close_bad_rails() {
  const int64_t now = now_ms(), heard = heard_ms();
  // If nothing comes at all, or nothing was read for a while, the silence of a rail counts only from now on.
  if (now - heard > kQuietMs || now - judged_ms_ > kQuietMs)
    for (Rail &rail : rails_) rail.judged_ms = now;
  judged_ms_ = now;
  for (uint32_t k = 0; k < rails_.size() && nopen() > 1; ++k) {
    Rail &rail = rails_[k];
    if (rail.tcp == nullptr) continue;
    if (now - std::max(rail.tcp->heard_ms(), rail.judged_ms) > kLostMs) {
      close(k, format("nothing has come over it, but over others, for %.1f s", kLostMs / 1e3), LogLevel::kWarn);
      continue;
    }
    double max_rate = 0;
    for (const Rail &other : rails_) max_rate = std::max(max_rate, other.tcp != nullptr ? other.rate.rate(now_us()) : 0);
    if (rail.is_probing || rail.rate.coming_us(now_us()) < kLateMs * 1000 || rail.rate.rate(now_us()) * kLateRatio > max_rate)
      continue;
    rail.rate.end(now_us());
    close(k, "it has become too slow for the message on it", LogLevel::kWarn);
  }
}

// Sends signs of life, which report how many messages have come.
void RailedConnection::acknowledge() {
  const int64_t now = now_ms();
  for (uint32_t k = 0; k < rails_.size(); ++k) {
    Rail &rail = rails_[k];
    if (rail.tcp == nullptr) continue;
    const bool has_news = rail.arrived != rail.reported_arrived || (k == control_rail_ && received_ != reported_received_);
    if (!has_news && now - rail.reported_ms < kAliveMs) continue;
    const auto rate = static_cast<uint32_t>(std::clamp(rail.rate.rate(now_us()) * 1e3, 0.0, 4e9));
    rail.tcp->send_urgent(wire_head(WireKind::kAlive, rate, rail.arrived, received_), nullptr);
    rail.reported_arrived = rail.arrived;
    rail.reported_ms = now;
    if (k == control_rail_) reported_received_ = received_;
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
  rates_known_ |= all_known || now - start_ms_ > kFirstMs;
  if (!rates_known_) return;
  rates_ = compare_rates(measured, speeds, open);
  // One probe at a time, because a slow rail has enough to do with it.
  for (uint32_t k = 0; k < rails_.size(); ++k)
    if (may_send(rails_[k]) && rails_[k].load.bytes() == 0 && now - send_ms_ < kUnusedMs && now - rails_[k].send_ms > kUnusedMs)
      probe(k);
  // All control messages have arrived, so the peer reads none from the old rail any more.
  const uint32_t best = best_rail();
  if (best != kNoRail && pending_.empty() && best != control_rail_ && rates_[best] > 2 * rates_[control_rail_])
    switch_control_rail(best);
}

Status RailedConnection::progress(WireSink &sink, bool *moved, bool *ended) {
  reopen();
  COLLC_RETURN_IF_FAILED(move(sink, moved));
  // The peer's system has ended one rail, and the other rails are silent: they may be cut, and the process of the peer gone.
  const bool is_dead = ended_ms_ != 0 && heard_ms() < ended_ms_ && now_ms() - ended_ms_ > kDeadMs;
  if (nopen() == 0 || is_dead) {
    *ended = last_ended_;
    return last_error_;
  }
  close_bad_rails();
  measure();
  acknowledge();
  return {};
}

}  // namespace collc
