#include "host/fifo_call.h"

#include "host/verbs.h"
#include "plan/weights.h"

namespace collc {
namespace {

// The steps of a call of this size in bytes, and of larger calls, take long enough to matter to other ranks.
constexpr uint64_t kMinSendsFirst = 16 << 10, kMinSendsFirstCrowded = 256 << 10;

}  // namespace

void FifoCall::begin(const CallCut &cut) {
  const Program &program = *shared_.running.program;
  const uint64_t bytes = shared_.running.call->count * shared_.running.element_bytes;
  cut_ = &cut;
  sends_first_ = bytes >= (shared_.cores_are_free ? kMinSendsFirst : kMinSendsFirstCrowded);
  is_broken_ = false;
  channels_.resize(program.nchannels);
  remaining_ = 0;
  shares_.begin_parts();
  const uint32_t plan_rank = context_.plan_rank();
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = rank_channel(*context_.tables, program, plan_rank, c);
    ChannelState &channel = channels_[c];
    channel.at = {0, 0};
    channel.chunk = channel.busy_ns = channel.part = 0;
    channel.blocked_on = plan_rank;  // no peer yet
    channel.steps = context_.tables->steps + place.first_step;
    channel.nsteps = place.nsteps;
    channel.iterations = cut.iterations[c];
    channel.done = channel.iterations == 0;
    if (place.nsteps != 0) channel.part = context_.tables->shares[program.first_share + channel.steps[0].share].part;
    if (!channel.done) ++remaining_;
  }
}

bool FifoCall::advance() {
  if (!sends_first_) return advance_channels(UINT32_MAX);
  // Chunks that others wait for go first, then a chunk of our own: a rank that reduces all it can before it sends its input
  // keeps the others waiting for that long.
  bool moved = advance_channels(0);
  if (!is_broken_) moved |= advance_channels(1);
  return moved;
}

// Advances each channel as far as it goes, with at most this many receiving steps.
bool FifoCall::advance_channels(uint32_t receives) {
  bool moved = false;
  const ShareRange *const shares = cut_->shares.data();
  for (size_t c = 0; c < channels_.size(); ++c) {
    ChannelState &channel = channels_[c];
    if (channel.done) continue;
    // If fewer channels run than the program has, each is followed by another one.
    if (channel_limit_ != 0 && c >= channel_limit_ && !channels_[c - channel_limit_].done) continue;
    const Cursor before = channel.at;
    HostVerbs verbs(shared_, channel, receives, breakdown_.channel(c));
    const Progress progress =
        run_channel(verbs, channel.steps, channel.nsteps, shared_.refs, shares, channel.iterations, channel.at);
    if (progress == Progress::kAborted || shared_.failed_to_read) {
      is_broken_ = true;
      return true;
    }
    const bool ended = progress == Progress::kDone && verbs.drained(shares);
    if (ended) finish_channel(channel);
    moved |= ended || channel.at.iteration != before.iteration || channel.at.step != before.step;
  }
  return moved;
}

void FifoCall::finish_channel(ChannelState &channel) {
  channel.done = true;
  --remaining_;
  shares_.end_part(channel.part);
  breakdown_.end_channel(static_cast<size_t>(&channel - channels_.data()), channel.busy_ns);
  for (uint32_t s = 0; s < channel.nsteps; ++s) {
    const Step &step = channel.steps[s];
    for (uint32_t i = 0; i < step.nrecv + step.nsend; ++i)
      shared_.fifos[shared_.refs[step.first_ref + i].fifo].end_call(shared_.running.call->number,
                                                                    cut_->shares[step.share].nchunks);
  }
}

void FifoCall::stop() {
  remaining_ = 0;
  for (ChannelState &channel : channels_) channel.done = true;
}

void FifoCall::add_waits(std::vector<bool> *ranks) const {
  // A channel that waits for its turn waits for another channel of this rank.
  for (const ChannelState &channel : channels_)
    if (!channel.done && channel.blocked_on != context_.plan_rank()) (*ranks)[nccl_rank(channel.blocked_on)] = true;
}

bool FifoCall::waits_on_core(uint32_t core) const {
  for (const ChannelState &channel : channels_) {
    if (channel.done) continue;
    const uint32_t peer = nccl_rank(channel.blocked_on);
    if (peer != context_.rank && context_.segment->line(peer).core.load(std::memory_order_relaxed) == core) return true;
  }
  return false;
}

std::string FifoCall::describe_wait() const {
  const auto waiting = std::find_if(channels_.begin(), channels_.end(), [](const ChannelState &one) { return !one.done; });
  const auto number = static_cast<uint32_t>(waiting - channels_.begin());
  const ChannelState &channel = *waiting;
  const Program &program = *shared_.running.program;
  std::string by;  // the path, where several classes could have carried the call
  if (program_weights(program) != 0) by = describe_class(channel.part, shares_.lost());
  const char *const collective = name_of(shared_.running.call->collective);
  const auto chunk = static_cast<unsigned long long>(channel.chunk);
  if (channel.at.iteration == channel.iterations)
    return format("rank %u waits for rank %u to read chunk %llu of %s%s (channel %u)", context_.rank,
                  nccl_rank(channel.blocked_on), chunk, collective, by.c_str(), number);
  return format("rank %u waits for rank %u in %s%s (channel %u, step %u, chunk %llu)", context_.rank,
                nccl_rank(channel.blocked_on), collective, by.c_str(), number, channel.at.step, chunk);
}

}  // namespace collc
