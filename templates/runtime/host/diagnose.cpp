// Why a rank waits: error messages, and the reasons to stop waiting.
#include <sched.h>

#include "control/last_calls.h"
#include "host/rank.h"
#include "plan/weights.h"

namespace collc {
namespace {

// A rank that does not come to its next call in that time keeps all weights as they are.
constexpr int64_t kAgreeUs = 1000000;

}  // namespace

Status find_difference(const Segment &segment, uint32_t rank, uint32_t peer, const Call &call) {
  COLLC_RETURN_IF_FAILED(segment.compare(rank, peer));
  const CallLog theirs = segment.log(peer);
  if (!theirs.forgot(call.number)) return {};
  return fail(ncclInvalidUsage, "calls differ: call %llu of rank %u is %s; rank %u has made %u others since",
              static_cast<unsigned long long>(call.number), rank, describe_call(call.packed_call, call.count).c_str(), peer,
              theirs.depth());
}

Status HostRank::differing_transfer(const Transfers::Difference &difference) const {
  const uint32_t peer = difference.peer;
  const std::string mine = format("rank %u is in %s", context_.rank, describe_call(difference.what, difference.count).c_str());
  if (is_transfer(difference.sent)) {
    const uint64_t sent = pack_transfer(false, type_told(difference.sent), static_cast<int>(context_.rank));
    return fail(ncclInvalidUsage, "calls differ: %s; rank %u has made %s", mine.c_str(), peer,
                describe_call(sent, count_told(difference.sent)).c_str());
  }
  Segment &segment = *context_.segment;
  COLLC_RETURN_IF_FAILED(segment.compare(context_.rank, peer));
  // A collective sends what this rank expects of ncclSend, or the peer's collective is one that this rank will call later.
  const uint64_t newest = segment.newest_call(peer);
  CallLog::Noted theirs;
  if (!is_transfer(difference.expected) || !segment.log(peer).find(newest, &theirs)) return {};
  return fail(ncclInvalidUsage, "calls differ: %s; call %llu of rank %u is %s", mine.c_str(),
              static_cast<unsigned long long>(newest), peer, describe_call(theirs.what, theirs.count).c_str());
}

std::string HostRank::waiting_for(const ChannelState &channel) const {
  const auto number = static_cast<uint32_t>(&channel - channels_.data());
  const Program &program = *shared_.running.program;
  std::string by;  // where several classes could have carried the call
  if (program_weights(program) != 0) {
    const Step &step = context_.tables->steps[rank_channel(program, number).first_step];
    by = describe_class(context_.tables->shares[program.first_share + step.share].part, losses_.lost());
  }
  if (channel.at.iteration == channel.iterations)
    return format("rank %u waits for rank %u to read chunk %llu of %s%s (channel %u)", context_.rank,
                  nccl_rank(channel.blocked_on), static_cast<unsigned long long>(channel.chunk),
                  name_of(shared_.running.call->collective), by.c_str(), number);
  return format("rank %u waits for rank %u in %s%s (channel %u, step %u, chunk %llu)", context_.rank,
                nccl_rank(channel.blocked_on), name_of(shared_.running.call->collective), by.c_str(), number, channel.at.step,
                static_cast<unsigned long long>(channel.chunk));
}

std::string HostRank::waiting_for_any() const {
  if (mode_ != Mode::kFifos)
    return format("rank %u waits for rank %u to %s %s", context_.rank, single_copy_.blocked_on(),
                  mode_ == Mode::kAgreeing ? "begin" : "finish", name_of(shared_.running.call->collective));
  for (const ChannelState &channel : channels_)
    if (!channel.done) return waiting_for(channel);
  return transfers_.describe();
}

bool HostRank::shares_core() const {
  const int core = sched_getcpu();
  if (core < 0) return false;
  const auto mine = static_cast<uint32_t>(core);
  context_.segment->line(context_.rank).core.store(mine, std::memory_order_relaxed);
  if (mode_ != Mode::kFifos)
    return context_.segment->line(single_copy_.blocked_on()).core.load(std::memory_order_relaxed) == mine;
  for (const ChannelState &channel : channels_) {
    if (channel.done) continue;
    const uint32_t peer = nccl_rank(channel.blocked_on);
    if (peer != context_.rank && context_.segment->line(peer).core.load(std::memory_order_relaxed) == mine) return true;
  }
  return false;
}

void HostRank::diagnose(int64_t waited_us) {
  const bool agrees = balancer_ != nullptr && balancer_->is_waiting();
  if (idle() && !agrees) return;
  Segment &memory = *context_.segment;
  memory.board().see(context_.rank);
  if (memory.aborted()) return fail_all(memory.abort_status(context_.rank));
  if (context_.stopped()) {
    memory.abort(fail(ncclRemoteError, "ncclCommAbort was called"), context_.rank);  // what the others are told
    return fail_all(fail(ncclInvalidUsage, "the communicator was aborted"));
  }
  if (agrees) end_agreeing(waited_us);
  if (idle()) return;
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (peer == context_.rank) continue;
    const bool left = memory.has_left(peer);
    // What it did before its end is seen after that. A collective needs all parts in the end, a transfer only its peer's.
    const bool gone = left || !memory.alive(peer);
    const bool ran = done() || memory.line(peer).calls.finished.load(std::memory_order_acquire) >= shared_.running.call->number;
    const bool owes = !ran || transfers_.waits_for(peer);
    if (const Status differs = memory.compare(context_.rank, peer); !differs.ok()) return fail_all(differs);
    if (gone && owes) {
      if (advance()) return;
      if (memory.aborted()) return fail_all(memory.abort_status(context_.rank));  // since the look above, and then it left
      return fail_all(fail(ncclRemoteError, "%s has %s; %s", context_.placement.name_of(peer).c_str(),
                           left ? "destroyed its communicator" : "died", waiting_for_any().c_str()));
    }
  }
  if (const Status cut = find_cut(); !cut.ok()) {
    if (!advance()) fail_all(memory.aborted() ? memory.abort_status(context_.rank) : cut);
    return;
  }
  if (const Status stuck = find_deadlock(memory, context_.rank); !stuck.ok()) return fail_all(stuck);
  const double limit = context_.timeout > 0 ? context_.timeout : most_wait_;
  if (limit > 0 && static_cast<double>(waited_us) > limit * 1e6)
    fail_all(fail(ncclRemoteError, "%safter %.1f s %s%s", context_.timeout > 0 ? "COLLC_TIMEOUT: " : "",
                  static_cast<double>(waited_us) / 1e6, waiting_for_any().c_str(),
                  describe_missing(memory, context_.rank, done() ? open_call_ : shared_.running.call->number).c_str()));
}

// The call that waits begins with the weights of before; it finds out itself what is wrong with the others.
void HostRank::end_agreeing(int64_t waited_us) {
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    const bool left = context_.segment->has_left(peer);
    if (left || !context_.segment->alive(peer))
      return balancer_->give_up(context_.placement.name_of(peer) + (left ? " has destroyed its communicator" : " has died"));
  }
  if (waited_us > kAgreeUs) balancer_->give_up_on_silent();
}

Status HostRank::find_cut() const {
  uint32_t courier = 0;
  if (!context_.segment->courier_has_ended(&courier)) return {};
  std::vector<bool> ranks(context_.nranks);
  find_waits(&ranks);
  for (uint32_t peer = 0; peer < context_.nranks; ++peer)
    if (ranks[peer] && !context_.placement.is_here(peer))
      return fail(ncclRemoteError, "the process of %s, which joined this machine with others, has %s; %s",
                  context_.placement.name_of(courier).c_str(), context_.segment->has_left(courier) ? "ended" : "died",
                  waiting_for_any().c_str());
  return {};
}

InCall HostRank::find_waits(std::vector<bool> *ranks) const {
  if (idle()) return {};
  for (uint32_t peer = 0; peer < context_.nranks; ++peer)
    if (transfers_.waits_for(peer)) (*ranks)[peer] = true;
  if (done()) return {transfers_.what(), transfers_.count()};
  if (mode_ != Mode::kFifos) (*ranks)[single_copy_.blocked_on()] = true;
  // A channel that waits for its turn waits for another channel of this rank.
  for (const ChannelState &channel : channels_)
    if (mode_ == Mode::kFifos && !channel.done && channel.blocked_on != plan_rank_)
      (*ranks)[nccl_rank(channel.blocked_on)] = true;
  return {shared_.running.call->packed_call, shared_.running.call->count};
}

}  // namespace collc
