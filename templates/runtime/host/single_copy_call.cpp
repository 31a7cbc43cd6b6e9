// A rank's part of a call on buffers that all ranks see: from the inputs of all to where the results belong.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/copy.h"
#include "host/rank.h"
#include "host/verbs.h"
#include "host/waiting.h"

namespace collc {
namespace {

// Between two looks at whether the communicator is broken: others may wait for us to leave their buffers alone.
constexpr uint64_t kPiece = 1 << 20;

// Less goes through FIFOs where ranks share cores, and less than kLeastByAddress of a root: there nobody waits until all have
// finished.
constexpr uint64_t kLeastCrowded = 2 << 10;

// All inputs together of a reduce_scatter between threads: there each rank has a chunk of its own for every other one.
constexpr uint64_t kLeastScattered = 8 << 10;

// From here on all ranks read the same input at the same time, their own like the others', so that the shared cache or the
// memory hands it out once. Of less each rank copies its own last, while others hear that it has finished.
constexpr uint64_t kTogether = 1 << 20;

// Of more the lines are not taken back before: a core waits for so many at a time.
constexpr uint64_t kMostPrefetched = 4 << 10;

// Finish::is_scaled of an average, whose sources here are all inputs.
constexpr auto kAllScaled = [] {
  std::array<bool, kMostPeers + 1> all{};
  for (bool &one : all) one = true;
  return all;
}();

// How many of the first dests lie the same within a cache line.
uint32_t alike(void *const *dests, uint32_t ndests) {
  const auto place = [dests](uint32_t i) { return reinterpret_cast<uintptr_t>(dests[i]) % kLine; };
  uint32_t count = 1;
  while (count < ndests && place(count) == place(0)) ++count;
  return count;
}

}  // namespace

// The steps in which this rank computes or copies. What it only sends stands in its input, and a result that another rank
// completes is put into its output.
void HostRank::find_own_steps(const Program &program, Cut *cut) const {
  cut->own_steps.clear();
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = rank_channel(program, c);
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      if ((step.flags & kOutput) == 0 || takes_result(cut->hop, step)) continue;
      if (cut->shares[step.share].nchunks != 0) cut->own_steps.push_back({&step, c});
    }
  }
  cut->nbefore = cut->own_steps.size();
  if (output_bytes() >= kTogether) {
    const auto source = [this](const OwnStep &own) {
      return own.step->nrecv == 0 ? context_.rank : nccl_rank(shared_.fifos[shared_.refs[own.step->first_ref].fifo].source);
    };
    std::stable_sort(cut->own_steps.begin(), cut->own_steps.end(),
                     [&source](const OwnStep &a, const OwnStep &b) { return source(a) < source(b); });
  } else {
    const auto receives = [](const OwnStep &own) { return own.step->nrecv != 0; };
    const auto local = std::stable_partition(cut->own_steps.begin(), cut->own_steps.end(), receives);
    cut->nbefore = static_cast<size_t>(local - cut->own_steps.begin());
  }
}

// Whether a single copy is worth it; all ranks come to the same answer.
bool HostRank::pays_to_offer() const {
  if (forced_) return false;
  const bool rooted = cut_->hop.senders.size() == 1;
  if (cores_are_free() && (!rooted || context_.nranks == 2)) return true;
  if (shared_.running.call->collective == Collective::kReduceScatter && shared_.neighbours.share_all())
    return context_.nranks * input_bytes() >= kLeastScattered;
  return output_bytes() >= (rooted ? kLeastByAddress : kLeastCrowded);
}

// Offers the buffers of the call to all ranks.
void HostRank::offer() {
  if (!pays_to_offer()) return;
  // Of a sum with a factor each rank knows its own, of an average that of all.
  const Operation &op = shared_.running.call->op;
  const bool allowed = shared_.running.keeps_input && (!op.has_scale || op.is_average) && (are_apart() || in_place());
  if (!single_copy_.begin(*shared_.running.call, cut_->hop, allowed, input_bytes(), output_bytes())) return;
  mode_ = Mode::kAgreeing;
  prefetch_output();
}

// Takes the lines of small results back from the cores that have read them, while we wait for the offers.
void HostRank::prefetch_output() const {
  uint64_t left = kMostPrefetched;
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

// As NCCL understands it.
bool HostRank::in_place() const {
  const char *input = static_cast<const char *>(shared_.running.call->input),
             *output = static_cast<const char *>(shared_.running.call->output);
  const uint64_t before = context_.rank * shared_.running.call->count * shared_.running.element_bytes;
  if (shared_.running.call->collective == Collective::kAllGather) return input == output + before;
  if (shared_.running.call->collective == Collective::kReduceScatter) return output == input + before;
  return input == output;
}

bool HostRank::advance_single_copy() {
  if (mode_ == Mode::kAgreeing) {
    switch (single_copy_.agree()) {
      case SingleCopy::Agreement::kOpen:
        return false;
      case SingleCopy::Agreement::kFifos:
        begin_fifos();
        return true;
      case SingleCopy::Agreement::kDiffers:
        return fail_if_different();
      case SingleCopy::Agreement::kDirect:
        run_single_copy();
        break;
    }
    if (mode_ != Mode::kFinishing) return true;
  }
  const SingleCopy::Agreement ended = single_copy_.others_finished();
  if (ended == SingleCopy::Agreement::kDiffers) return fail_if_different();
  if (ended != SingleCopy::Agreement::kDirect) return false;
  mode_ = Mode::kFifos;
  finish_call();
  for (uint32_t c = 0; timed_ && c < shared_.running.program->nchannels; ++c)
    times_[c].waiting += now_ns() - begun_ns_ - channels_[c].busy_ns;
  return true;
}

// Fails the call if the rank that a single copy waits for has made another one.
bool HostRank::fail_if_different() {
  const Status differs = find_difference(*context_.segment, context_.rank, single_copy_.blocked_on(), *shared_.running.call);
  if (!differs.ok()) fail_all(differs);
  return !differs.ok();
}

void HostRank::run_single_copy() {
  if (timed_) channels_.assign(shared_.running.program->nchannels, {});
  Segment &segment = *context_.segment;
  std::atomic<uint32_t> &reading = segment.line(context_.rank).reading;
  segment.show(reading, 1u);
  run_own_steps(0, cut_->nbefore);
  // A rank that was interrupted must not report that it has finished. The look at `aborted` comes after all that was read.
  segment.show(reading, 0u);
  if (segment.aborted()) return fail_all(segment.abort_status(context_.rank));
  mode_ = Mode::kFinishing;
  single_copy_.finish();
  run_own_steps(cut_->nbefore, cut_->own_steps.size());  // while that is on its way
  if (segment.aborted()) fail_all(segment.abort_status(context_.rank));
}

void HostRank::run_own_steps(size_t begin, size_t end) {
  const uint64_t piece = kPiece / shared_.running.element_bytes;
  for (size_t i = begin; i < end; ++i) {
    const OwnStep &own = cut_->own_steps[i];
    const ShareRange &share = cut_->shares[own.step->share];
    for (uint64_t at = share.begin; at < share.end && !context_.segment->aborted(); at += piece)
      move_piece(own, share, at, std::min(piece, share.end - at));
  }
}

void HostRank::move_piece(const OwnStep &own, const ShareRange &share, uint64_t begin, uint64_t elements) {
  const Step &step = *own.step;
  const uint64_t start = timed_ ? now_ns() : 0;
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
    sources[nsources++] = single_copy_.input_of(nccl_rank(shared_.fifos[recv[i].fifo].source)) + from;
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
      for (uint32_t r = 0; r < end.nreaders; ++r) dests[ndests++] = single_copy_.output_of(nccl_rank(end.readers[r])) + to;
    }
    if (cut_->streams_one_copy) finish.streamed = alike(dests, ndests);
    shared_.running.reduce(sources, nsources, dests, ndests, elements, finish);
  } else if (dests[0] != sources[0]) {
    if (cut_->streams_one_copy)
      stream(dests[0], sources[0], elements * shared_.running.element_bytes);
    else
      std::memcpy(dests[0], sources[0], elements * shared_.running.element_bytes);
  }
  if (timed_) count_time(own.channel, now_ns() - start, reduces);
}

}  // namespace collc
