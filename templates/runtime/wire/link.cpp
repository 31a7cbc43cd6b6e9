#include "wire/link.h"

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/rendezvous.h"
#include "control/report_loss.h"
#include "plan/weights.h"

namespace collc {
namespace {

constexpr int64_t kBeatMs = 1000;
// After the death of a proxy thread's process, ranks that wait for its ranks get this time to report it first.
constexpr int64_t kMourningMs = 1000;
// The connection may end this much earlier than the end of the process shows.
constexpr int64_t kEndingMs = 100;
// Within this time, data that had left before the connection was lost arrive; later, they will not come.
constexpr int64_t kStrandedMs = 1000;

}  // namespace

Link::Link(const LaneContext &context, const std::vector<uint64_t> &processes, uint32_t machine,
           std::unique_ptr<WireConnection> connection)
    : segment_(context.segment),
      placement_(context.placement),
      processes_(processes),
      machine_(machine),
      lanes_(context, machine),
      mirror_(context.segment, placement_, machine, context.ranks != nullptr),
      connection_(std::move(connection)),
      told_ms_(now_ms()),
      one_server_(context.ranks != nullptr) {}

bool Link::advance() {
  if (stands_) stand();
  if (connection_ == nullptr) return false;
  if (lost_ms_ != 0) {
    mourn();
    return false;
  }
  bool moved = false, ended = false;
  const uint64_t queued = connection_->queued();
  if (!goodbye_said_) {
    moved = lanes_.send(*connection_);
    mirror_.tell(*connection_, lanes_);
    if (mirror_.all_told()) {
      connection_->send(wire_head(WireKind::kGoodbye, 0), nullptr);
      connection_->finish();
      goodbye_said_ = true;
    } else {
      keep_alive();
    }
  }
  moved |= connection_->queued() != queued;
  const Status status = connection_->progress(*this, &moved, &ended);
  mirror_.forget(connection_->sent());
  // The ranks there have gone, and their proxy thread only waits for this end to close.
  if (goodbye_heard_)
    connection_.reset();
  else if (!status.ok())
    lose(status, ended);
  return moved;
}

void Link::keep_alive() {
  const int64_t now = now_ms();
  if (now - told_ms_ < kBeatMs) return;
  told_ms_ = now;
  connection_->send(wire_head(WireKind::kBeat, 0), nullptr);
}

Status Link::place(const WireHead &head, char **body) {
  return Lanes::takes(kind_of(head)) ? lanes_.place(head, body) : mirror_.place(head, body);
}

Status Link::take(const WireHead &head) {
  const WireKind kind = kind_of(head);
  if (kind == WireKind::kGoodbye) goodbye_heard_ = true;
  if (kind == WireKind::kBeat || kind == WireKind::kGoodbye) return {};
  return Lanes::takes(kind) ? lanes_.take(head) : mirror_.take(head);
}

std::string Link::ranks_there() const {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < placement_.machine.size(); ++r)
    if (placement_.machine[r] == machine_) ranks.push_back(r);
  return std::string(ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks);
}

void Link::lose(const Status &why, bool ended) {
  lost_ms_ = now_ms();
  uint32_t first = 0;
  while (placement_.machine[first] != machine_) ++first;
  const char *const name = connection_->name().c_str();
  // The other machine's system closed the connection, so the process of its proxy thread has ended.
  lost_why_ = ended ? format("the process of rank %u, which joined %s with other machines, has %s: %s are out of reach", first,
                             name, segment_.has_left(first) ? "ended" : "died", ranks_there().c_str())
                    : format("%s on %s: %s", ranks_there().c_str(), name, why.text().c_str());
  if (goodbye_said_ || mirror_.all_gone()) {
    connection_.reset();
    return;
  }
  if (one_server_) {
    lost_why_ = ranks_there() + " on " + name + ": " + (ended ? "the connection was ended there" : why.text());
    if (!ended) lost_ms_ -= kEndingMs;
    connection_.reset();
    stands_ = true;
    return stand();
  }
  log(LogLevel::kWarn, "%s", lost_why_.c_str());
  if (!ended) {
    lost_ms_ -= kMourningMs;
    return mourn();
  }
  mirror_.bury(processes_, processes_[first]);
}

void Link::mourn() {
  if (now_ms() - lost_ms_ < kMourningMs) return;
  uint32_t own = 0;
  while (!placement_.is_here(own)) ++own;
  if (!segment_.aborted()) segment_.abort(Status(ncclRemoteError, lost_why_), own);
  connection_.reset();
}

void Link::stand() {
  const uint32_t own = placement_.local_machine;
  stands_ = !mirror_.all_gone() && !segment_.has_left(own) && !segment_.aborted();
  const int64_t now = now_ms();
  if (!stands_ || now - lost_ms_ < kEndingMs) return;
  Losses losses = segment_.losses(own);
  report_loss(losses, own, kNetPart, lost_why_);
  if (!lanes_.is_stranded())
    stranded_ms_ = 0;
  else if (stranded_ms_ == 0)
    stranded_ms_ = now;
  else if (now - stranded_ms_ >= kStrandedMs)
    segment_.abort(fail(ncclRemoteError, "rank %u cannot go on over net, which has failed: %s", own, lost_why_.c_str()), own);
}

}  // namespace collc
