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
constexpr int64_t kAbortDelayMs = 1000;
// The connection may end this much earlier than the end of the process shows.
constexpr int64_t kEndingMs = 100;
// Within this time, data that had left before the connection was lost arrive; later, they will not come.
constexpr int64_t kStrandedMs = 1000;

}  // namespace

Link::Link(const RemoteContext &context, const std::vector<uint64_t> &processes, uint32_t machine,
           std::unique_ptr<WireConnection> connection)
    : segment_(context.segment),
      placement_(context.placement),
      processes_(processes),
      machine_(machine),
      queues_(context, machine),
      remote_ranks_(context.segment, placement_, machine, context.ranks != nullptr),
      connection_(std::move(connection)),
      beat_ms_(now_ms()),
      one_server_(context.ranks != nullptr) {}

bool Link::advance() {
  if (reports_failure_) report_failure();
  if (connection_ == nullptr) return false;
  if (lost_ms_ != 0) {
    abort_later();
    return false;
  }
  bool moved = false, ended = false;
  const uint64_t queued = connection_->queued();
  if (!goodbye_sent_) {
    moved = queues_.send(*connection_);
    remote_ranks_.send_changes(*connection_, queues_);
    if (remote_ranks_.all_ends_sent()) {
      connection_->send(wire_head(WireKind::kGoodbye, 0), nullptr);
      connection_->finish();
      goodbye_sent_ = true;
    } else {
      keep_alive();
    }
  }
  moved |= connection_->queued() != queued;
  const Status status = connection_->progress(*this, &moved, &ended);
  remote_ranks_.drop_sent(connection_->sent());
  // The ranks there have gone, and their proxy thread only waits for this end to close.
  if (goodbye_received_)
    connection_.reset();
  else if (!status.ok())
    lose(status, ended);
  return moved;
}

void Link::keep_alive() {
  const int64_t now = now_ms();
  if (now - beat_ms_ < kBeatMs) return;
  beat_ms_ = now;
  connection_->send(wire_head(WireKind::kBeat, 0), nullptr);
}

Status Link::place(const WireHead &head, char **body) {
  return RemoteQueues::takes(kind_of(head)) ? queues_.place(head, body) : remote_ranks_.place(head, body);
}

Status Link::take(const WireHead &head) {
  const WireKind kind = kind_of(head);
  if (kind == WireKind::kGoodbye) goodbye_received_ = true;
  if (kind == WireKind::kBeat || kind == WireKind::kGoodbye) return {};
  return RemoteQueues::takes(kind) ? queues_.take(head) : remote_ranks_.take(head);
}

std::string Link::describe_remote_ranks() const {
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
  loss_reason_ = ended ? format("the process of rank %u, which joined %s with other machines, has %s: %s are out of reach",
                                first, name, segment_.has_left(first) ? "ended" : "died", describe_remote_ranks().c_str())
                       : format("%s on %s: %s", describe_remote_ranks().c_str(), name, why.text().c_str());
  if (goodbye_sent_ || remote_ranks_.all_remote_gone()) {
    connection_.reset();
    return;
  }
  if (one_server_) {
    loss_reason_ = describe_remote_ranks() + " on " + name + ": " + (ended ? "the connection was ended there" : why.text());
    if (!ended) lost_ms_ -= kEndingMs;
    connection_.reset();
    reports_failure_ = true;
    return report_failure();
  }
  log(LogLevel::kWarn, "%s", loss_reason_.c_str());
  if (!ended) {
    lost_ms_ -= kAbortDelayMs;
    return abort_later();
  }
  remote_ranks_.mark_dead(processes_, processes_[first]);
}

void Link::abort_later() {
  if (now_ms() - lost_ms_ < kAbortDelayMs) return;
  uint32_t local_rank = 0;
  while (!placement_.is_here(local_rank)) ++local_rank;
  if (!segment_.aborted()) segment_.abort(Status(ncclRemoteError, loss_reason_), local_rank);
  connection_.reset();
}

void Link::report_failure() {
  const uint32_t local_rank = placement_.local_machine;
  reports_failure_ = !remote_ranks_.all_remote_gone() && !segment_.has_left(local_rank) && !segment_.aborted();
  const int64_t now = now_ms();
  if (!reports_failure_ || now - lost_ms_ < kEndingMs) return;
  Losses losses = segment_.losses(local_rank);
  report_loss(losses, local_rank, kNetPart, loss_reason_);
  if (!queues_.is_stranded())
    stranded_ms_ = 0;
  else if (stranded_ms_ == 0)
    stranded_ms_ = now;
  else if (now - stranded_ms_ >= kStrandedMs)
    segment_.abort(
        fail(ncclRemoteError, "rank %u cannot go on over net, which has failed: %s", local_rank, loss_reason_.c_str()),
        local_rank);
}

}  // namespace collc
