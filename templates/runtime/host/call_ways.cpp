// Which way the data of a call goes, by the thresholds that the ranks of a machine share.
#include <unistd.h>

#include <algorithm>

#include "base/two_ranks.h"
#include "host/rank.h"

namespace collc {
namespace {

// Some calls gain from a last cache that holds all outputs so many times: cores share it, those of other virtual machines too.
// With 260 MiB of it all_gathers of 4 x 16 MiB took longer past the caches, of 8 x 16 MiB less time.
constexpr uint64_t kCached = 3;

// Bytes of the last cache; 0: not known.
uint64_t last_cache() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
#else
  return 0;
#endif
}

}  // namespace

// The current call runs this program.
void HostRank::take(const Program &program) {
  const Call &call = *shared_.running.call;
  shared_.running.program = &program;
  cut_ = &cut(call, program);
  const auto input = reinterpret_cast<uintptr_t>(call.input), output = reinterpret_cast<uintptr_t>(call.output);
  shared_.running.keeps_input = are_apart() || !cut_->reduces_what_it_sends;
  // Steps that send and steps that overwrite are of one channel.
  shared_.running.awaits_fetching = !shared_.running.keeps_input && input == output && program.nchannels == 1;
  shared_.running.streams = cut_->streams;
  shared_.running.streams_slots = cut_->streams_slots;
  shared_.running.pulled = cut_->pulled;
  shared_.running.learns_pulls =
      call.collective == Collective::kBroadcast && cores_are_free() && output_bytes() >= PullCosts::kLeast;
  shared_.running.sums_everywhere = cut_->sums_everywhere;
  if (timed_) times_.resize(std::max<size_t>(times_.size(), program.nchannels));
}

// Bytes of a chunk; the same on all ranks.
uint32_t HostRank::most_chunk(const Program &program) const {
  if (chunk_limit_ != 0) return std::min(chunk_limit_, program.chunk_bytes);
  if (program.collective != Collective::kBroadcast || context_.nranks != 2 || !context_.placement.machine.empty())
    return program.chunk_bytes;
  const uint64_t part = (output_bytes() / kPipelined + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  return static_cast<uint32_t>(std::min<uint64_t>(program.chunk_bytes, std::max<uint64_t>(part, kLeastPipelined)));
}

// Whether input and output share no byte.
bool HostRank::are_apart() const {
  const auto input = reinterpret_cast<uintptr_t>(shared_.running.call->input),
             output = reinterpret_cast<uintptr_t>(shared_.running.call->output);
  return output >= input + input_bytes() || input >= output + output_bytes();
}

// `through_slots`: what others need of the results goes through slots, or by the kernel; else they are in one memory.
bool HostRank::is_streamed(bool through_slots) const {
  const Thresholds &from = shared_.neighbours.thresholds().at(shared_.distances.any_far());
  const uint64_t bytes = output_bytes();
  const Collective collective = shared_.running.call->collective;
  const bool gathers_crowded = collective == Collective::kAllGather && !cores_are_free();
  const bool sends_sums_on = through_slots && collective == Collective::kAllReduce && cores_are_free();
  // Inputs of that size leave nothing of a smaller result in the caches.
  if (collective != Collective::kBroadcast && !gathers_crowded && !sends_sums_on)
    return std::max(input_bytes(), bytes) >= from.streamed_results;
  // That is measured between two cores: more outputs than cores leave nothing in a cache sooner.
  if (collective == Collective::kBroadcast && from.streamed_broadcasts != 0 && cores_are_free())
    return context_.nranks * bytes >= from.streamed_broadcasts;
  return bytes >= from.streamed_results && context_.nranks * bytes >= last_cache() / kCached;
}

// Until it is known what that costs (transport/slot_ways.h).
bool HostRank::streams_slots() const {
  const Thresholds &from = shared_.neighbours.thresholds().at(shared_.distances.any_far());
  const bool broadcast = shared_.running.call->collective == Collective::kBroadcast;
  return output_bytes() >= (broadcast ? from.streamed_broadcast_slots : from.streamed_slots);
}

// Large ones until it is known what that costs (transport/pull_ways.h).
bool HostRank::is_pulled() const {
  if (shared_.running.call->collective != Collective::kBroadcast || !cores_are_free()) return false;
  const Thresholds &from = shared_.neighbours.thresholds().at(shared_.distances.any_far());
  return output_bytes() >= from.pulled_broadcasts && output_bytes() < from.pulled_broadcasts_end;
}

// Only for what both ranks of a machine can do. What a tuning file says stands.
void HostRank::adapt(Choices *choices) const {
  const Thresholds &near = shared_.neighbours.thresholds().near_cores, &far = shared_.neighbours.thresholds().far_cores;
  // All calls that run it at one distance or the other; chosen() says which.
  uint64_t begin = UINT64_MAX, end = 0;
  for (const Thresholds *one : {&near, &far}) {
    if (one->sums_everywhere >= one->sums_everywhere_end) continue;
    begin = std::min(begin, one->sums_everywhere);
    end = std::max(end, one->sums_everywhere_end);
  }
  if (context_.placement.allocation == nullptr || begin >= end) return;
  const Allocation &allocation = *context_.placement.allocation;
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = context_.tables->programs[allocation.first_program + p];
    if (program.min_bytes != UINT64_MAX && reduces_everywhere(program)) return choices->widen(program, begin, end);
  }
}

// Whether every rank hands its whole input to the other and reduces both. The same on all ranks, as is all that follows.
bool HostRank::reduces_everywhere(const Program &program) const {
  const uint32_t nranks = context_.placement.allocation->nranks;
  if (program.collective != Collective::kAllReduce || program.nshares != 1 || program.nchannels != 1 || nranks != 2)
    return false;
  if (forced_ || !cores_are_free() || !context_.placement.machine.empty() || !shared_.neighbours.copy_all()) return false;
  for (uint32_t r = 0; r < nranks; ++r) {
    const RankChannel &place = context_.tables->rank_channels[program.first_rank_channel + r];
    uint32_t sends = 0, sums = 0;
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      if ((step.flags & kInput) == 0) return false;
      sends += step.nrecv == 0 && step.nsend == 1 && (step.flags & kOutput) == 0 ? 1 : 0;
      sums += step.nrecv == 1 && step.nsend == 0 && (step.flags & kOutput) != 0 ? 1 : 0;
    }
    if (sends != 1 || sums != 1 || place.nsteps != 2) return false;
  }
  return true;
}

bool HostRank::sums_everywhere(const Program &program) const {
  return is_summed_everywhere(output_bytes()) && reduces_everywhere(program);
}

// Whether a call of that size is; by what the two ranks know alike.
bool HostRank::is_summed_everywhere(uint64_t bytes) const {
  const Thresholds &from = shared_.neighbours.thresholds().at(agreed_far_);
  return bytes >= from.sums_everywhere && bytes < from.sums_everywhere_end;
}

// Whether each of two ranks receives something of the other in every such call. Then both know afterwards what both have said.
bool HostRank::exchanges(const Program &program, const std::vector<ShareRange> &shares) const {
  const uint32_t nranks = context_.placement.allocation->nranks;
  if (program.collective != Collective::kAllReduce || nranks != 2 || !context_.placement.machine.empty()) return false;
  for (uint32_t r = 0; r < nranks; ++r) {
    bool receives = false;
    for (uint32_t c = 0; c < program.nchannels; ++c) {
      const RankChannel &place = context_.tables->rank_channels[program.first_rank_channel + r * program.nchannels + c];
      for (uint32_t s = 0; s < place.nsteps; ++s) {
        const Step &step = context_.tables->steps[place.first_step + s];
        receives |= step.nrecv != 0 && shares[step.share].nchunks != 0;
      }
    }
    if (!receives) return false;
  }
  return true;
}

}  // namespace collc
