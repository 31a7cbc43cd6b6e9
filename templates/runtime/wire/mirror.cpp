#include "wire/mirror.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace collc {
namespace {

// The calls of a rank are sent at most this often. Only ranks that have waited for longer compare calls.
constexpr int64_t kCallsUs = 2000;

}  // namespace

Mirror::Mirror(Segment &segment, const Placement &placement, uint32_t machine, bool one_memory)
    : segment_(segment), placement_(placement), machine_(machine), one_memory_(one_memory), incoming_(kMostControlBytes) {
  for (uint32_t r = 0; r < placement.machine.size(); ++r)
    if (placement.is_here(r)) {
      Told told = {};
      told.rank = r;
      ours_.push_back(told);
    }
}

bool Mirror::tell(WireConnection &connection, const Lanes &lanes) {
  bool any = !one_memory_ && tell_abort(connection);
  for (Told &told : ours_) {
    any |= !one_memory_ && tell_mail(connection, told);
    any |= !one_memory_ && tell_calls(connection, told, false);
    any |= tell_end(connection, lanes, told);
  }
  return any;
}

void Mirror::send(WireConnection &connection, WireHead head, Bytes body) {
  head.bytes = static_cast<uint32_t>(body.size());
  kept_.push_back({connection.queued() + 1, std::move(body)});
  connection.send(head, kept_.back().body.data());
}

void Mirror::forget(uint64_t sent) {
  while (!kept_.empty() && kept_.front().message <= sent) kept_.pop_front();
}

bool Mirror::tell_calls(WireConnection &connection, Told &told, bool now) {
  const CallCounts &calls = segment_.line(told.rank).calls;
  const uint64_t finished = calls.finished.load(std::memory_order_acquire);
  const bool finalized = segment_.is_finalized(told.rank);  // before the newest call, which then is the last one
  const uint64_t newest = calls.newest.load(std::memory_order_acquire);
  if (newest == told.newest && finished == told.finished && finalized == told.finalized) return false;
  const int64_t time = now_us();
  if (!now && time - told.calls_us < kCallsUs) return false;
  const CallLog log = segment_.log(told.rank);
  const uint64_t most = std::min(kMostToldCalls, log.depth());
  std::vector<CallTold> calls_told;
  for (uint64_t number = std::max(told.newest + 1, newest > most ? newest - most + 1 : 1); number <= newest; ++number) {
    CallLog::Noted noted;
    if (log.find(number, &noted)) calls_told.push_back({number, noted.history, noted.count, noted.what});
  }
  Bytes body(calls_told.size() * sizeof(CallTold));
  if (!body.empty()) std::memcpy(body.data(), calls_told.data(), body.size());
  send(connection, wire_head(WireKind::kCalls, told.rank, newest, finished, 0, finalized ? 1 : 0), std::move(body));
  told.newest = newest;
  told.finished = finished;
  told.finalized = finalized;
  told.calls_us = time;
  return true;
}

bool Mirror::tell_mail(WireConnection &connection, Told &told) {
  const Mail &mail = segment_.line(told.rank).mail;
  const uint64_t number = mail.number.load(std::memory_order_acquire);
  if (number == told.mail) return false;
  // Older messages may be overwritten during the copy.
  for (uint64_t one = std::max(told.mail + 1, number >= kKeptMail ? number - kKeptMail + 1 : 1); one <= number; ++one) {
    const unsigned char *data = mail.data[one % Mail::kKept];
    send(connection, wire_head(WireKind::kMail, told.rank, one), Bytes(data, data + Mail::kBytes));
  }
  told.mail = number;
  return true;
}

bool Mirror::tell_abort(WireConnection &connection) {
  ControlPage &control = segment_.control();
  if (told_abort_ || control.aborted.load(std::memory_order_acquire) != 2) return false;
  told_abort_ = true;
  const char *text = control.abort_text;
  const size_t size = strnlen(text, sizeof control.abort_text);
  send(connection, wire_head(WireKind::kAbort, control.abort_rank, 0, 0, 0, static_cast<uint32_t>(control.abort_code)),
       Bytes(text, text + size));
  return true;
}

bool Mirror::tell_end(WireConnection &connection, const Lanes &lanes, Told &told) {
  if (told.gone || !has_gone(told.rank)) return false;
  // Everything that the rank did before its end is visible now, and is sent first.
  if (!lanes.is_drained(told.rank, connection.rails())) return false;
  told.gone = true;
  if (one_memory_) return true;
  tell_mail(connection, told);
  tell_calls(connection, told, true);
  tell_abort(connection);
  const WireKind kind = segment_.has_left(told.rank) ? WireKind::kLeft : WireKind::kDied;
  connection.send(wire_head(kind, told.rank), nullptr);
  return true;
}

bool Mirror::all_told() const {
  return std::all_of(ours_.begin(), ours_.end(), [](const Told &told) { return told.gone; });
}

bool Mirror::all_gone() const {
  for (uint32_t r = 0; r < placement_.machine.size(); ++r)
    if (is_theirs(r) && !has_gone(r)) return false;
  return true;
}

void Mirror::bury(uint32_t rank) {
  if (segment_.has_left(rank)) return;
  RankLine &line = segment_.line(rank);
  line.liveness.owner_tid.store(FUTEX_OWNER_DIED, std::memory_order_seq_cst);
  line.state.store(static_cast<uint32_t>(RankState::kAttached), std::memory_order_seq_cst);
}

void Mirror::bury(const std::vector<uint64_t> &processes, uint64_t process) {
  for (uint32_t r = 0; r < placement_.machine.size(); ++r)
    if (is_theirs(r) && (process == 0 || processes[r] == process)) bury(r);
}

Status Mirror::place(const WireHead &head, char **body) {
  if (head.bytes > incoming_.size()) return fail(ncclInternalError, "it sent a message of %u bytes", head.bytes);
  *body = reinterpret_cast<char *>(incoming_.data());
  return {};
}

Status Mirror::take(const WireHead &head) {
  const auto kind = static_cast<WireKind>(head.kind);
  // The rank that aborts a communicator may be on any machine.
  const bool known = kind == WireKind::kAbort ? head.object < placement_.machine.size() : is_theirs(head.object);
  if (!known || one_memory_) return fail(ncclInternalError, "it sent a message about rank %u, which is not there", head.object);
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
      bury(head.object);
      return {};
    case WireKind::kAbort: {
      const auto *const text = reinterpret_cast<const char *>(incoming_.data());
      told_abort_ = true;  // the machine of the rank that aborts tells all others itself
      segment_.abort(Status(static_cast<ncclResult_t>(head.extra), printable(std::string(text, text + head.bytes))),
                     head.object);
      return {};
    }
    default:
      return fail(ncclInternalError, "it sent a message of kind %u", head.kind);
  }
}

void Mirror::take_calls(const WireHead &head) {
  CallLog log = segment_.log(head.object);
  for (size_t at = 0; at + sizeof(CallTold) <= head.bytes; at += sizeof(CallTold)) {
    CallTold call;
    std::memcpy(&call, incoming_.data() + at, sizeof call);
    log.note(call.number, call.history, call.count, call.what);
  }
  CallCounts &calls = segment_.line(head.object).calls;
  calls.newest.store(head.number, std::memory_order_release);
  calls.finished.store(head.tag, std::memory_order_release);
  if (head.extra != 0) segment_.finalize(head.object);
}

void Mirror::take_mail(const WireHead &head) {
  Mail &mail = segment_.line(head.object).mail;
  std::memcpy(mail.data[head.number % Mail::kKept], incoming_.data(), std::min<size_t>(head.bytes, Mail::kBytes));
  mail.number.store(head.number, std::memory_order_release);
}

}  // namespace collc
