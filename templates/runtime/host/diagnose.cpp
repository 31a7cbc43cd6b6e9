// Why a rank waits: error messages, and the reasons to stop waiting.
#include <sched.h>

#include "control/last_calls.h"
#include "host/rank.h"

namespace collc {
Status find_difference(const Segment &segment, uint32_t rank, uint32_t peer, const Call &call) {
  COLLC_RETURN_IF_FAILED(segment.compare(rank, peer));
  const CallLog theirs = segment.log(peer);
  if (!theirs.forgot(call.number)) return {};
  return fail(ncclInvalidUsage, "calls differ: call %llu of rank %u is %s; rank %u has made %u others since",
              static_cast<unsigned long long>(call.number), rank, describe_call(call.packed_call, call.count).c_str(), peer,
              theirs.depth());
}

Status describe_difference(Segment &segment, uint32_t rank, const Transfers::Difference &difference) {
  const uint32_t peer = difference.peer;
  const std::string mine = format("rank %u is in %s", rank, describe_call(difference.what, difference.count).c_str());
  if (is_transfer(difference.sent)) {
    const uint64_t sent = pack_transfer(false, type_told(difference.sent), static_cast<int>(rank));
    return fail(ncclInvalidUsage, "calls differ: %s; rank %u has made %s", mine.c_str(), peer,
                describe_call(sent, count_told(difference.sent)).c_str());
  }
  COLLC_RETURN_IF_FAILED(segment.compare(rank, peer));
  // Either the peer's collective sends data that this rank expects of ncclSend, or this rank will call the peer's collective
  // later.
  const uint64_t newest = segment.newest_call(peer);
  CallLog::Noted theirs;
  if (!is_transfer(difference.expected) || !segment.log(peer).find(newest, &theirs)) return {};
  return fail(ncclInvalidUsage, "calls differ: %s; call %llu of rank %u is %s", mine.c_str(),
              static_cast<unsigned long long>(newest), peer, describe_call(theirs.what, theirs.count).c_str());
}

std::string HostRank::describe_wait() const {
  if (single_copy_.is_running()) return single_copy_.describe_wait();
  return fifo_call_.is_done() ? transfers_.queues().describe() : fifo_call_.describe_wait();
}

bool HostRank::shares_core() const {
  const int core = sched_getcpu();
  if (core < 0) return false;
  const auto own = static_cast<uint32_t>(core);
  Segment &segment = *context_.segment;
  segment.line(context_.rank).core.store(own, std::memory_order_relaxed);
  if (single_copy_.is_running()) return segment.line(single_copy_.blocked_on()).core.load(std::memory_order_relaxed) == own;
  return fifo_call_.waits_on_core(own);
}

void HostRank::diagnose(int64_t waited_us) {
  if (idle() && !shares_.is_agreeing()) return;
  Segment &memory = *context_.segment;
  memory.board().see(context_.rank);
  if (memory.aborted()) return fail_all(memory.abort_status(context_.rank));
  if (context_.stopped()) {
    memory.abort(fail(ncclRemoteError, "ncclCommAbort was called"), context_.rank);  // the error of the other ranks
    return fail_all(fail(ncclInvalidUsage, "the communicator was aborted"));
  }
  if (shares_.is_agreeing()) shares_.end_agreeing(waited_us);
  if (idle()) return;
  Status never = find_gone_peer();
  if (never.ok()) never = find_cut();
  if (!never.ok()) {
    if (never.code() == ncclInvalidUsage) return fail_all(never);  // the calls differ
    if (advance()) return;                                          // the peer had done its part before it went
    return fail_all(memory.aborted() ? memory.abort_status(context_.rank) : never);
  }
  if (const Status stuck = find_deadlock(memory, context_.rank); !stuck.ok()) return fail_all(stuck);
  const double limit = context_.timeout > 0 ? context_.timeout : max_wait_seconds_;
  if (limit == 0 || static_cast<double>(waited_us) <= limit * 1e6) return;
  const uint64_t number = done() ? transfers_.open_collective() : shared_.running.call->number;
  fail_all(fail(ncclRemoteError, "%safter %.1f s %s%s", context_.timeout > 0 ? "COLLC_TIMEOUT: " : "",
                static_cast<double>(waited_us) / 1e6, describe_wait().c_str(),
                describe_missing(memory, context_.rank, number).c_str()));
}

// Returns ncclRemoteError if a peer that this rank needs has died or left, and ncclInvalidUsage if one calls something else.
Status HostRank::find_gone_peer() const {
  Segment &memory = *context_.segment;
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (peer == context_.rank) continue;
    // Everything that the peer did before its end is visible after these looks, so they come first.
    const bool left = memory.has_left(peer), is_gone = left || !memory.alive(peer);
    // A collective needs the parts of all ranks in the end, a transfer only its peer's.
    const bool ran = done() || memory.line(peer).calls.finished.load(std::memory_order_acquire) >= shared_.running.call->number;
    const bool is_needed = !ran || transfers_.queues().waits_for(peer);
    COLLC_RETURN_IF_FAILED(memory.compare(context_.rank, peer));
    if (is_gone && is_needed)
      return fail(ncclRemoteError, "%s has %s; %s", context_.placement.name_of(peer).c_str(),
                  left ? "destroyed its communicator" : "died", describe_wait().c_str());
  }
  return {};
}

// Returns an error if this rank waits for a rank of another machine, and the process that joined this machine with others has
// ended.
Status HostRank::find_cut() const {
  uint32_t owner = 0;
  if (!context_.segment->proxy_has_ended(&owner)) return {};
  std::vector<bool> ranks(context_.nranks);
  find_waits(&ranks);
  for (uint32_t peer = 0; peer < context_.nranks; ++peer)
    if (ranks[peer] && !context_.placement.is_here(peer))
      return fail(ncclRemoteError, "the process of %s, which joined this machine with others, has %s; %s",
                  context_.placement.name_of(owner).c_str(), context_.segment->has_left(owner) ? "ended" : "died",
                  describe_wait().c_str());
  return {};
}

InCall HostRank::find_waits(std::vector<bool> *ranks) const {
  if (idle()) return {};
  const Transfers &queues = transfers_.queues();
  for (uint32_t peer = 0; peer < context_.nranks; ++peer)
    if (queues.waits_for(peer)) (*ranks)[peer] = true;
  if (done()) return {queues.what(), queues.count()};
  if (single_copy_.is_running())
    (*ranks)[single_copy_.blocked_on()] = true;
  else
    fifo_call_.add_waits(ranks);
  return {shared_.running.call->packed_call, shared_.running.call->count};
}

}  // namespace collc
