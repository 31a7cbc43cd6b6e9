#include "host/single_copy_call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/copy.h"
#include "host/operands.h"

namespace collc {
namespace {

// Bytes between two looks at whether the communicator is broken, because others may wait until this rank no longer uses their
// buffers.
constexpr uint64_t kPieceBytes = 1 << 20;

// The lines of larger results are not fetched before, because a core waits for no more bytes at a time.
constexpr uint64_t kMaxPrefetchedBytes = 4 << 10;

// Finish::is_scaled of an average, where all sources are inputs.
constexpr auto kAllScaled = [] {
  std::array<bool, kMostPeers + 1> all{};
  for (bool &one : all) one = true;
  return all;
}();

// Returns how many of the first dests have the same offset in a cache line.
uint32_t count_aligned(void *const *dests, uint32_t ndests) {
  const auto place = [dests](uint32_t i) { return reinterpret_cast<uintptr_t>(dests[i]) % kLine; };
  uint32_t count = 1;
  while (count < ndests && place(count) == place(0)) ++count;
  return count;
}

}  // namespace

SingleCopyCall::SingleCopyCall(const RankContext &context, ChannelContext &shared, Breakdown &breakdown)
    : context_(context),
      shared_(shared),
      breakdown_(breakdown),
      copy_(*context.segment, *reinterpret_cast<Offers *>(context.segment->memory()), context.rank, shared.neighbors) {}

void SingleCopyCall::offer(const CallCut &cut, const PathChooser &chooser) {
  const RunningCall &running = shared_.running;
  if (!chooser.gains_by_single_copy(running, cut.hop.senders.size() == 1)) return;
  // Each rank knows only its own factor of a scaled sum, but the factor of an average is the same on all.
  const Operation &op = running.call->op;
  const bool allowed = running.keeps_input && (!op.has_scale || op.is_average) && (running.are_buffers_apart || is_in_place());
  if (!copy_.begin(*running.call, cut.hop, allowed, running.input_bytes, running.output_bytes)) return;
  cut_ = &cut;
  state_ = State::kAgreeing;
  prefetch_output();
}

// Fetches the lines of small results from the cores that have read them, while this rank waits for the offers.
void SingleCopyCall::prefetch_output() const {
  uint64_t left = kMaxPrefetchedBytes;
  for (size_t i = 0; i < cut_->nbefore; ++i) {
    const ShareRange &share = cut_->shares[cut_->own_steps[i].step->share];
    const uint64_t bytes = (share.end - share.begin) * shared_.running.element_bytes;
    if (bytes > left) return;
    left -= bytes;
    const char *const output = static_cast<const char *>(shared_.running.call->output) +
                               (share.out_base + share.begin) * shared_.running.element_bytes;
    for (uint64_t at = 0; at < bytes; at += kLine) prefetch_to_write(output + at);
  }
}

// Returns true if the call is in place by NCCL's definition.
bool SingleCopyCall::is_in_place() const {
  const Call &call = *shared_.running.call;
  const char *input = static_cast<const char *>(call.input), *output = static_cast<const char *>(call.output);
  const uint64_t before = context_.rank * call.count * shared_.running.element_bytes;
  if (call.collective == Collective::kAllGather) return input == output + before;
  if (call.collective == Collective::kReduceScatter) return output == input + before;
  return input == output;
}

SingleCopyCall::Outcome SingleCopyCall::advance() {
  if (state_ == State::kAgreeing) {
    switch (copy_.agree()) {
      case SingleCopy::Agreement::kOpen:
        return Outcome::kWaits;
      case SingleCopy::Agreement::kFifos:
        state_ = State::kIdle;
        return Outcome::kFifos;
      case SingleCopy::Agreement::kDiffers:
        return Outcome::kDiffers;
      case SingleCopy::Agreement::kDirect:
        if (!run()) return Outcome::kBroken;
        break;
    }
  }
  switch (copy_.others_finished()) {
    case SingleCopy::Agreement::kDiffers:
      return Outcome::kDiffers;
    case SingleCopy::Agreement::kDirect:
      break;
    default:
      return Outcome::kWaits;
  }
  state_ = State::kIdle;
  for (uint32_t c = 0; c < busy_ns_.size(); ++c) breakdown_.end_channel(c, busy_ns_[c]);
  return Outcome::kDone;
}

// Does this rank's part of the call. Returns false if the communicator is aborted.
bool SingleCopyCall::run() {
  if (breakdown_.is_on()) busy_ns_.assign(shared_.running.program->nchannels, 0);
  Segment &segment = *context_.segment;
  std::atomic<uint32_t> &reading = segment.line(context_.rank).reading;
  segment.show(reading, 1u);
  run_own_steps(0, cut_->nbefore);
  // A rank that was interrupted must not report that it has finished. The look at `aborted` comes after all that was read.
  segment.show(reading, 0u);
  if (segment.aborted()) return false;
  state_ = State::kFinishing;
  copy_.finish();
  run_own_steps(cut_->nbefore, cut_->own_steps.size());  // while the others learn that this rank has finished
  return !segment.aborted();
}

std::string SingleCopyCall::describe_wait() const {
  return format("rank %u waits for rank %u to %s %s", context_.rank, blocked_on(),
                state_ == State::kAgreeing ? "begin" : "finish", name_of(shared_.running.call->collective));
}

void SingleCopyCall::run_own_steps(size_t begin, size_t end) {
  const uint64_t piece = kPieceBytes / shared_.running.element_bytes;
  for (size_t i = begin; i < end; ++i) {
    const OwnStep &own = cut_->own_steps[i];
    const ShareRange &share = cut_->shares[own.step->share];
    for (uint64_t at = share.begin; at < share.end && !context_.segment->aborted(); at += piece)
      move_piece(own, share, at, std::min(piece, share.end - at));
  }
}

void SingleCopyCall::move_piece(const OwnStep &own, const ShareRange &share, uint64_t begin, uint64_t elements) {
  const Step &step = *own.step;
  const uint64_t start = breakdown_.is_on() ? now_ns() : 0;
  const uint64_t from = (share.in_base + begin) * shared_.running.element_bytes,
                 to = (share.out_base + begin) * shared_.running.element_bytes;
  const char *const input = static_cast<const char *>(shared_.running.call->input) + from;
  const bool has_input = (step.flags & kInput) != 0;
  const FifoRef *const recv = shared_.refs + step.first_ref, *const send = recv + step.nrecv;
  const void *sources[kMostPeers + 1];
  void *dests[kMostPeers + 1];
  uint32_t nsources = 0, ndests = 0;
  for (uint32_t i = 0; i < step.nrecv; ++i) {
    if (has_input && i == step.input_at) sources[nsources++] = input;
    sources[nsources++] = copy_.input_of(nccl_rank(shared_.fifos[recv[i].fifo].source)) + from;
  }
  if (has_input && step.input_at >= step.nrecv) sources[nsources++] = input;
  dests[ndests++] = static_cast<char *>(shared_.running.call->output) + to;
  Finish finish = shared_.running.finish;
  if ((step.flags & kFinal) == 0) finish.divisor = 1;
  if (shared_.running.call->op.has_scale) finish.is_scaled = kAllScaled.data();
  const bool reduces = nsources > 1 || finish.divisor != 1 || finish.is_scaled != nullptr;
  if (reduces) {
    for (uint32_t i = 0; step.nrecv > 0 && i < step.nsend; ++i) {
      const FifoEnd &end = shared_.fifos[send[i].fifo];
      for (uint32_t r = 0; r < end.nreaders; ++r) dests[ndests++] = copy_.output_of(nccl_rank(end.readers[r])) + to;
    }
    if (cut_->paths.streams_in_place) finish.streamed = count_aligned(dests, ndests);
    shared_.running.reduce(sources, nsources, dests, ndests, elements, finish);
  } else if (dests[0] != sources[0]) {
    if (cut_->paths.streams_in_place)
      stream(dests[0], sources[0], elements * shared_.running.element_bytes);
    else
      std::memcpy(dests[0], sources[0], elements * shared_.running.element_bytes);
  }
  if (breakdown_.is_on()) count_time(own.channel, start, reduces);
}

void SingleCopyCall::count_time(uint32_t channel, uint64_t begin_ns, bool reduced) {
  const uint64_t spent = now_ns() - begin_ns;
  ChannelTimes &times = *breakdown_.channel(channel);
  (reduced ? times.reducing : times.copying) += spent;
  busy_ns_[channel] += spent;
}

}  // namespace collc
