#include "wire/remote_ranks.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace collc {
namespace {

// The calls of a rank are sent at most this often. Only ranks that have waited for longer compare calls.
constexpr int64_t kCallsUs = 2000;

}  // namespace

RemoteRanks::RemoteRanks(Segment &segment, const Placement &placement, uint32_t machine, bool one_memory)
    : segment_(segment), placement_(placement), machine_(machine), one_memory_(one_memory), incoming_(kMaxControlBytes) {
  for (uint32_t r = 0; r < placement.machine.size(); ++r)
    if (placement.is_here(r)) {
      SentState state = {};
      state.rank = r;
      local_ranks_.push_back(state);
    }
}

bool RemoteRanks::send_changes(WireConnection &connection, const RemoteQueues &queues) {
  bool sent_any = !one_memory_ && send_abort(connection);
  for (SentState &state : local_ranks_) {
    sent_any |= !one_memory_ && send_mail(connection, state);
    sent_any |= !one_memory_ && send_calls(connection, state, false);
    sent_any |= send_end(connection, queues, state);
  }
  return sent_any;
}

void RemoteRanks::send(WireConnection &connection, WireHead head, Bytes body) {
  head.bytes = static_cast<uint32_t>(body.size());
  queued_bodies_.push_back({connection.queued() + 1, std::move(body)});
  connection.send(head, queued_bodies_.back().body.data());
}

void RemoteRanks::drop_sent(uint64_t sent) {
  while (!queued_bodies_.empty() && queued_bodies_.front().message <= sent) queued_bodies_.pop_front();
}

bool RemoteRanks::send_calls(WireConnection &connection, SentState &state, bool now) {
  const CallCounts &calls = segment_.line(state.rank).calls;
  const uint64_t finished = calls.finished.load(std::memory_order_acquire);
  const bool finalized = segment_.is_finalized(state.rank);  // before the newest call, which then is the last one
  const uint64_t newest = calls.newest.load(std::memory_order_acquire);
  if (newest == state.newest && finished == state.finished && finalized == state.finalized) return false;
  const int64_t time = now_us();
  if (!now && time - state.calls_us < kCallsUs) return false;
  const CallLog log = segment_.log(state.rank);
  const uint64_t max_calls = std::min(kMaxSentCalls, log.depth());
  std::vector<SentCall> records;
  for (uint64_t number = std::max(state.newest + 1, newest > max_calls ? newest - max_calls + 1 : 1); number <= newest;
       ++number) {
    CallLog::Noted record;
    if (log.find(number, &record)) records.push_back({number, record.history, record.count, record.what});
  }
  Bytes body(records.size() * sizeof(SentCall));
  if (!body.empty()) std::memcpy(body.data(), records.data(), body.size());
  send(connection, wire_head(WireKind::kCalls, state.rank, newest, finished, 0, finalized ? 1 : 0), std::move(body));
  state.newest = newest;
  state.finished = finished;
  state.finalized = finalized;
  state.calls_us = time;
  return true;
}

bool RemoteRanks::send_mail(WireConnection &connection, SentState &state) {
  const Mail &mail = segment_.line(state.rank).mail;
  const uint64_t number = mail.number.load(std::memory_order_acquire);
  if (number == state.mail) return false;
  // Older messages may be overwritten during the copy.
  for (uint64_t i = std::max(state.mail + 1, number >= kKeptMail ? number - kKeptMail + 1 : 1); i <= number; ++i) {
    const unsigned char *data = mail.data[i % Mail::kKept];
    send(connection, wire_head(WireKind::kMail, state.rank, i), Bytes(data, data + Mail::kBytes));
  }
  state.mail = number;
  return true;
}

bool RemoteRanks::send_abort(WireConnection &connection) {
  ControlPage &control = segment_.control();
  if (abort_sent_ || control.aborted.load(std::memory_order_acquire) != 2) return false;
  abort_sent_ = true;
  const char *text = control.abort_text;
  const size_t size = strnlen(text, sizeof control.abort_text);
  send(connection, wire_head(WireKind::kAbort, control.abort_rank, 0, 0, 0, static_cast<uint32_t>(control.abort_code)),
       Bytes(text, text + size));
  return true;
}

bool RemoteRanks::send_end(WireConnection &connection, const RemoteQueues &queues, SentState &state) {
  if (state.end_sent || !has_gone(state.rank)) return false;
  // Everything that the rank did before its end is visible now, and is sent first.
  if (!queues.is_drained(state.rank, connection.rails())) return false;
  state.end_sent = true;
  if (one_memory_) return true;
  send_mail(connection, state);
  send_calls(connection, state, true);
  send_abort(connection);
  const WireKind kind = segment_.has_left(state.rank) ? WireKind::kLeft : WireKind::kDied;
  connection.send(wire_head(kind, state.rank), nullptr);
  return true;
}

bool RemoteRanks::all_ends_sent() const {
  return std::all_of(local_ranks_.begin(), local_ranks_.end(), [](const SentState &state) { return state.end_sent; });
}

bool RemoteRanks::all_remote_gone() const {
  for (uint32_t r = 0; r < placement_.machine.size(); ++r)
    if (is_remote(r) && !has_gone(r)) return false;
  return true;
}

void RemoteRanks::mark_dead(uint32_t rank) {
  if (segment_.has_left(rank)) return;
  RankLine &line = segment_.line(rank);
  line.liveness.owner_tid.store(FUTEX_OWNER_DIED, std::memory_order_seq_cst);
  line.state.store(static_cast<uint32_t>(RankState::kAttached), std::memory_order_seq_cst);
}

void RemoteRanks::mark_dead(const std::vector<uint64_t> &processes, uint64_t process) {
  for (uint32_t r = 0; r < placement_.machine.size(); ++r)
    if (is_remote(r) && (process == 0 || processes[r] == process)) mark_dead(r);
}

Status RemoteRanks::place(const WireHead &head, char **body) {
  if (head.bytes > incoming_.size()) return fail(ncclInternalError, "it sent a message of %u bytes", head.bytes);
  *body = reinterpret_cast<char *>(incoming_.data());
  return {};
}

Status RemoteRanks::take(const WireHead &head) {
  const auto kind = static_cast<WireKind>(head.kind);
  // The rank that aborts a communicator may be on any machine.
  const bool is_valid_rank = kind == WireKind::kAbort ? head.object < placement_.machine.size() : is_remote(head.object);
  if (!is_valid_rank || one_memory_)
    return fail(ncclInternalError, "it sent a message about rank %u, which is not there", head.object);
  switch (kind) {
    case WireKind::kCalls:
      take_calls(head);
      return {};
    case WireKind::kMail:
      take_mail(head);
      return {};
    case WireKind::kLeft:
      segment_.line(head.object).state.store(static_cast<uint32_t>(RankState::kLeft), std::memory_order_seq_cst);
      return {};
    case WireKind::kDied:
      mark_dead(head.object);
      return {};
    case WireKind::kAbort: {
      const auto *const text = reinterpret_cast<const char *>(incoming_.data());
      abort_sent_ = true;  // the machine of the rank that aborts tells all others itself
      segment_.abort(Status(static_cast<ncclResult_t>(head.extra), printable(std::string(text, text + head.bytes))),
                     head.object);
      return {};
    }
    default:
      return fail(ncclInternalError, "it sent a message of kind %u", head.kind);
  }
}

void RemoteRanks::take_calls(const WireHead &head) {
  CallLog log = segment_.log(head.object);
  for (size_t at = 0; at + sizeof(SentCall) <= head.bytes; at += sizeof(SentCall)) {
    SentCall call;
    std::memcpy(&call, incoming_.data() + at, sizeof call);
    log.note(call.number, call.history, call.count, call.what);
  }
  CallCounts &calls = segment_.line(head.object).calls;
  calls.newest.store(head.number, std::memory_order_release);
  calls.finished.store(head.tag, std::memory_order_release);
  if (head.extra != 0) segment_.finalize(head.object);
}

void RemoteRanks::take_mail(const WireHead &head) {
  Mail &mail = segment_.line(head.object).mail;
  std::memcpy(mail.data[head.number % Mail::kKept], incoming_.data(), std::min<size_t>(head.bytes, Mail::kBytes));
  mail.number.store(head.number, std::memory_order_release);
}

}  // namespace collc
