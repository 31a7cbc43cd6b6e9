// Which way the data of a call goes, by the thresholds that the ranks of a machine share.
#include <unistd.h>

#include "host/rank.h"

namespace collc {
namespace {

// A broadcast, which reads and writes every byte once, gains from a last cache that holds all outputs so many times: cores
// share it, those of other virtual machines too.
constexpr uint64_t kCached = 6;

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

bool HostRank::is_streamed() const {
  const Thresholds &from = shared_.neighbours.thresholds();
  const uint64_t bytes = output_bytes();
  if (shared_.running.call->collective != Collective::kBroadcast) return bytes >= from.streamed_results;
  if (from.streamed_broadcasts != 0) return context_.nranks * bytes >= from.streamed_broadcasts;
  return bytes >= from.streamed_results && context_.nranks * bytes >= last_cache() / kCached;
}

// Until it is known what that costs (transport/slot_ways.h).
bool HostRank::streams_slots() const {
  const Thresholds &from = shared_.neighbours.thresholds();
  const bool broadcast = shared_.running.call->collective == Collective::kBroadcast;
  return output_bytes() >= (broadcast ? from.streamed_broadcast_slots : from.streamed_slots);
}

bool HostRank::is_pulled() const {
  if (shared_.running.call->collective != Collective::kBroadcast || !cores_are_free()) return false;
  const Thresholds &from = shared_.neighbours.thresholds();
  return output_bytes() >= from.pulled_broadcasts && output_bytes() < from.pulled_broadcasts_end;
}

// Only for what both ranks of a machine can do. What a tuning file says stands.
void HostRank::adapt(Choices *choices) {
  const Thresholds &from = shared_.neighbours.thresholds();
  if (context_.placement.allocation == nullptr || from.sums_everywhere == UINT64_MAX) return;
  const Allocation &allocation = *context_.placement.allocation;
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = context_.tables->programs[allocation.first_program + p];
    if (program.min_bytes != UINT64_MAX && reduces_everywhere(program))
      return choices->widen(program, from.sums_everywhere, from.sums_everywhere_end);
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
  const Thresholds &from = shared_.neighbours.thresholds();
  return output_bytes() >= from.sums_everywhere && output_bytes() < from.sums_everywhere_end && reduces_everywhere(program);
}

}  // namespace collc
