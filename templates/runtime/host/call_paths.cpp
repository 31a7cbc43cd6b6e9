#include "host/call_paths.h"

#include <unistd.h>

#include <algorithm>

#include "base/two_ranks.h"

namespace collc {
namespace {

// Some calls gain if the last cache can contain all outputs this many times, because other cores share the cache, also cores of
// other virtual machines. With a cache of 260 MiB, all_gathers of 4 x 16 MiB took longer past the caches, and of 8 x 16 MiB
// less time.
constexpr uint64_t kCachedOutputs = 3;

// A single copy of fewer bytes takes longer than FIFOs if ranks share cores. With one root the limit is kLeastByAddress,
// because with FIFOs nobody waits until all have finished.
constexpr uint64_t kMinCrowdedBytes = 2 << 10;

// The same for all inputs together of a reduce_scatter between threads: there each rank has a separate chunk for every other
// rank.
constexpr uint64_t kMinScatterBytes = 8 << 10;

// Returns the bytes of the last cache; 0: unknown.
uint64_t last_cache() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
#else
  return 0;
#endif
}

}  // namespace

void PathChooser::open(const Overrides &overrides) {
  agreed_far_ = neighbors_.given_far();  // until the first all_reduce has told
  is_protocol_forced_ = overrides.protocol >= 0;
  chunk_limit_ = overrides.chunk_bytes;
  // One protocol besides Simple, a cache line that contains flag and data, stands for both LL and LL128.
  if (overrides.protocol > Overrides::kSimple)
    chunk_limit_ = chunk_limit_ == 0 ? SlotLine::kData : std::min(chunk_limit_, SlotLine::kData);
}

CallPaths PathChooser::choose_paths(const RunningCall &running, const Program &program) const {
  const Thresholds &from = thresholds();
  const uint64_t bytes = running.output_bytes;
  const bool is_broadcast = running.call->collective == Collective::kBroadcast;
  CallPaths paths;
  paths.streams = is_streamed(running, true);
  paths.streams_in_place = is_streamed(running, false);
  // Until the times of slots show what streaming costs (transport/slot_ways.h).
  paths.streams_slots = bytes >= (is_broadcast ? from.streamed_broadcast_slots : from.streamed_slots);
  // Until the times of broadcasts show what pulling costs (transport/pull_ways.h).
  paths.is_pulled = is_broadcast && cores_are_free_ && bytes >= from.pulled_broadcasts && bytes < from.pulled_broadcasts_end;
  paths.sums_everywhere = is_summed_everywhere(bytes) && reduces_everywhere(program);
  return paths;
}

bool PathChooser::learns_pulls(const RunningCall &running) const {
  return running.call->collective == Collective::kBroadcast && cores_are_free_ && running.output_bytes >= PullCosts::kLeast;
}

uint32_t PathChooser::max_chunk(const Program &program, uint64_t bytes) const {
  if (chunk_limit_ != 0) return std::min(chunk_limit_, program.chunk_bytes);
  if (program.collective != Collective::kBroadcast || context_.nranks != 2 || !context_.placement.machine.empty())
    return program.chunk_bytes;
  const uint64_t part = (bytes / kPipelined + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  return static_cast<uint32_t>(std::min<uint64_t>(program.chunk_bytes, std::max<uint64_t>(part, kLeastPipelined)));
}

bool PathChooser::gains_by_single_copy(const RunningCall &running, bool has_root) const {
  if (is_protocol_forced_) return false;
  if (cores_are_free_ && (!has_root || context_.nranks == 2)) return true;
  if (running.call->collective == Collective::kReduceScatter && neighbors_.share_all())
    return context_.nranks * running.input_bytes >= kMinScatterBytes;
  return running.output_bytes >= (has_root ? kLeastByAddress : kMinCrowdedBytes);
}

// `through_slots`: other ranks get the results through slots or by the kernel. Otherwise all results are in one memory.
bool PathChooser::is_streamed(const RunningCall &running, bool through_slots) const {
  const Thresholds &from = thresholds();
  const uint64_t bytes = running.output_bytes;
  const Collective collective = running.call->collective;
  const bool gathers_crowded = collective == Collective::kAllGather && !cores_are_free_;
  const bool sends_sums_on = through_slots && collective == Collective::kAllReduce && cores_are_free_;
  // Inputs of that size leave nothing of a smaller result in the caches.
  if (collective != Collective::kBroadcast && !gathers_crowded && !sends_sums_on)
    return std::max(running.input_bytes, bytes) >= from.streamed_results;
  // The threshold is measured between two cores. More outputs than cores leave nothing in a cache sooner.
  if (collective == Collective::kBroadcast && from.streamed_broadcasts != 0 && cores_are_free_)
    return context_.nranks * bytes >= from.streamed_broadcasts;
  return bytes >= from.streamed_results && context_.nranks * bytes >= last_cache() / kCachedOutputs;
}

// Changes a call only if both ranks of a machine can run the program. A tuning file is followed.
void PathChooser::adapt(Choices *choices) const {
  const Thresholds &near = neighbors_.thresholds().near_cores, &far = neighbors_.thresholds().far_cores;
  // The sizes of calls that run it at one distance or the other; choose() decides for each call.
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

// Returns true if every rank sends its whole input to the other and reduces both.
bool PathChooser::reduces_everywhere(const Program &program) const {
  const uint32_t nranks = context_.placement.allocation->nranks;
  if (program.collective != Collective::kAllReduce || program.nshares != 1 || program.nchannels != 1 || nranks != 2)
    return false;
  if (is_protocol_forced_ || !cores_are_free_ || !context_.placement.machine.empty() || !neighbors_.copy_all()) return false;
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

// Returns true if both ranks reduce a call of `bytes`. Decides by the distance that both ranks know.
bool PathChooser::is_summed_everywhere(uint64_t bytes) const {
  const Thresholds &from = neighbors_.thresholds().at(agreed_far_);
  return bytes >= from.sums_everywhere && bytes < from.sums_everywhere_end;
}

bool PathChooser::exchanges(const Program &program, const std::vector<ShareRange> &shares) const {
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
