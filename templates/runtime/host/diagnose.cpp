// Why a rank waits: words for people, and the reasons to stop waiting.
#include <sched.h>

#include "host/rank.h"
#include "plan.h"

namespace collc {

Status HostRank::differing_call(uint32_t plan_rank) const {
  const auto describe = [](uint32_t collective, uint64_t count, uint32_t type, uint32_t op, int root) {
    std::string text = format("%s of %llu elements, type %u, op %u", name_of(static_cast<Collective>(collective)),
                              static_cast<unsigned long long>(count), type, op);
    return root < 0 ? text : text + format(", root %d", root);
  };
  const uint32_t peer = nccl_rank(plan_rank);
  const CallRecord &theirs = context_.segment->line(peer).call;
  const uint64_t number = theirs.number.load(std::memory_order_acquire);
  const std::string mine = describe(static_cast<uint32_t>(call_->collective), call_->count, static_cast<uint32_t>(call_->type),
                                    static_cast<uint32_t>(call_->op.average ? ncclAvg : call_->op.kind), call_->root);
  const std::string other = describe(theirs.collective.load(std::memory_order_relaxed), theirs.count.load(std::memory_order_relaxed),
                                     theirs.type.load(std::memory_order_relaxed), theirs.op.load(std::memory_order_relaxed),
                                     theirs.root.load(std::memory_order_relaxed));
  return fail(ncclInvalidUsage, "calls differ: call %llu of rank %u is %s; call %llu of rank %u is %s",
              static_cast<unsigned long long>(call_->number), context_.rank, mine.c_str(),
              static_cast<unsigned long long>(number), peer, other.c_str());
}

std::string HostRank::waiting_for(const ChannelState &channel) const {
  if (channel.at.iteration == channel.iterations)
    return format("rank %u waits for rank %u to read chunk %llu of %s (channel %u)", context_.rank,
                  nccl_rank(channel.blocked_on), static_cast<unsigned long long>(channel.chunk), name_of(call_->collective),
                  static_cast<uint32_t>(&channel - channels_.data()));
  return format("rank %u waits for rank %u in %s (channel %u, step %u, chunk %llu)", context_.rank,
                nccl_rank(channel.blocked_on), name_of(call_->collective), static_cast<uint32_t>(&channel - channels_.data()),
                channel.at.step, static_cast<unsigned long long>(channel.chunk));
}

std::string HostRank::waiting_for_any() const {
  if (mode_ != Mode::kFifos)
    return format("rank %u waits for rank %u to %s %s", context_.rank, single_copy_.blocked_on(),
                  mode_ == Mode::kAgreeing ? "begin" : "finish", name_of(call_->collective));
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
  if (idle()) return;
  Segment &memory = *context_.segment;
  if (memory.aborted()) return fail_all(memory.abort_status(context_.rank));
  if (context_.stopped()) return fail_all(fail(ncclInvalidUsage, "the communicator was aborted"));
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (peer == context_.rank) continue;
    const CallRecord &theirs = memory.line(peer).call;
    const bool left =
        memory.line(peer).state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::kLeft);
    // What it did before its end is seen after that. A collective needs all parts in the end, a transfer only its peer's.
    const bool gone = left || !memory.alive(peer);
    const bool ran = done() || theirs.finished.load(std::memory_order_acquire) >= call_->number;
    const bool owes = !ran || transfers_.waits_for(peer);
    if (gone && owes) {
      if (advance()) return;
      return fail_all(fail(ncclRemoteError, "rank %u has %s; %s", peer, left ? "destroyed its communicator" : "died",
                           waiting_for_any().c_str()));
    }
    if (done()) continue;
    const uint64_t number = theirs.number.load(std::memory_order_acquire);
    const uint64_t signature = theirs.signature.load(std::memory_order_acquire);
    if (number == call_->number && signature != call_->signature && theirs.number.load(std::memory_order_relaxed) == number)
      return fail_all(differing_call(context_.placement.plan_rank[peer]));
  }
  if (context_.timeout > 0 && static_cast<double>(waited_us) > context_.timeout * 1e6)
    fail_all(fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s %s", static_cast<double>(waited_us) / 1e6,
                  waiting_for_any().c_str()));
}

}  // namespace collc
