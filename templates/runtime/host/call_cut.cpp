#include "host/call_cut.h"

#include <algorithm>

#include "plan/blocks.h"

namespace collc {
namespace {

// From this size of the result up, all ranks, also the owner, read the same input at the same time, so that the shared cache or
// the memory provides it once. With smaller results, each rank copies its own input last, while others learn that it has
// finished.
constexpr uint64_t kTogetherBytes = 1 << 20;

}  // namespace

const CallCut &CallCutter::cut(const Program &program, uint32_t weights, const ChannelContext &shared,
                               const PathChooser &chooser) {
  const RunningCall &running = shared.running;
  CallCut &cut = cuts_[number_of(program)];
  const bool far = shared.distances.any_far(), agreed_far = chooser.agreed_far();
  if (cut.count == running.call->count && cut.element_bytes == running.element_bytes && cut.weights == weights &&
      cut.any_far == far && cut.agreed_far == agreed_far)
    return cut;
  if (cut.count == 0) {
    cut.reduces_what_it_sends = reduces_what_it_sends(program);
    if (shared.neighbors.see_all()) cut.hop = one_hop(*context_.tables, context_.placement, program, context_.rank);
  }
  cut.count = running.call->count;
  cut.element_bytes = running.element_bytes;
  cut.weights = weights;
  cut.any_far = far;
  cut.agreed_far = agreed_far;
  cut_shares(program, running, chooser.max_chunk(program, running.output_bytes), &cut);
  if (cut.hop.is) find_own_steps(program, shared, &cut);
  cut.paths = chooser.choose_paths(running, program);
  cut.exchanges = chooser.exchanges(program, cut.shares);
  return cut;
}

void CallCutter::cut_shares(const Program &program, const RunningCall &running, uint32_t max_chunk, CallCut *cut) const {
  const uint64_t count = running.call->count;
  cut->shares.resize(program.nshares);
  for (uint32_t s = 0; s < program.nshares; ++s) {
    const Share &share = context_.tables->shares[program.first_share + s];
    cut->shares[s] = cut_share(share, count, running.element_bytes, max_chunk, cut->weights);
    const uint32_t block = nccl_block(program.collective, share.block, context_.placement.nccl_rank);
    place_block(program.collective, context_.nranks, block, count, cut->shares[s]);
  }
  cut->iterations.assign(program.nchannels, 0);
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = channel_of(program, c);
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      const uint64_t chunks = cut->shares[step.share].nchunks;
      if (chunks != 0) cut->iterations[c] = std::max(cut->iterations[c], chunks + step.lag);
    }
  }
}

// Returns true if this rank sends its input of a share to others and also stores a result that it reduces from it: in place,
// that overwrites chunks that the others may not have read.
bool CallCutter::reduces_what_it_sends(const Program &program) const {
  std::vector<uint8_t> uses(program.nshares, 0);  // bit 0: sent, bit 1: reduced
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = channel_of(program, c);
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      if ((step.flags & kInput) == 0) continue;
      if (step.nrecv == 0 && step.nsend > 0) uses[step.share] |= 1;
      if (step.nrecv > 0 && (step.flags & kOutput) != 0) uses[step.share] |= 2;
    }
  }
  return std::find(uses.begin(), uses.end(), 3) != uses.end();
}

// Lists the steps that make this rank compute or copy. Chunks that it only sends are read in its input, and a result that
// another rank completes is stored in its output by that rank.
void CallCutter::find_own_steps(const Program &program, const ChannelContext &shared, CallCut *cut) const {
  cut->own_steps.clear();
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = channel_of(program, c);
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      if ((step.flags & kOutput) == 0 || takes_result(cut->hop, step)) continue;
      if (cut->shares[step.share].nchunks != 0) cut->own_steps.push_back({&step, c});
    }
  }
  cut->nbefore = cut->own_steps.size();
  if (shared.running.output_bytes >= kTogetherBytes) {
    const auto source = [&](const OwnStep &own) {
      if (own.step->nrecv == 0) return context_.rank;
      return shared.nccl_rank[shared.fifos[shared.refs[own.step->first_ref].fifo].source];
    };
    std::stable_sort(cut->own_steps.begin(), cut->own_steps.end(),
                     [&source](const OwnStep &a, const OwnStep &b) { return source(a) < source(b); });
  } else {
    const auto receives = [](const OwnStep &own) { return own.step->nrecv != 0; };
    const auto local = std::stable_partition(cut->own_steps.begin(), cut->own_steps.end(), receives);
    cut->nbefore = static_cast<size_t>(local - cut->own_steps.begin());
  }
}

}  // namespace collc
