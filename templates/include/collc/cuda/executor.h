// What a block does: one channel of one rank, by the step program that all targets share.
#pragma once
#include "collc/cuda/ll.h"
#include "collc/cuda/ll128.h"
#include "collc/cuda/simple.h"
#include "collc/cuda/tally.h"

namespace collc::cuda {

// This call's share ranges, computed by all threads; a barrier must follow.
COLLC_DEVICE void place_shares(const RankState &state, const Program &program, uint64_t count, uint32_t element_bytes,
                               uint32_t weights, ShareRange *ranges) {
#pragma unroll 1
  for (uint32_t s = thread_index(); s < program.nshares; s += thread_count()) {
    const Share &share = state.shares[program.first_share + s];
    ShareRange range = cut_share(share, count, element_bytes, program.chunk_bytes, weights);
    place_block(program.collective, state.nranks, share.block, count, range);
    ranges[s] = range;
  }
}

static_assert(sizeof(ShareRange) == kShareBytes, "shared_bytes() counts on it");

// `Verbs` is a protocol: Simple, LL or LL128.
template <class T, class Verbs>
COLLC_DEVICE void run_block(const Launch &launch) {
  const RankCall &call = launch.ranks[block_index() / launch.nchannels];
  const uint32_t channel = block_index() % launch.nchannels;
  const RankState &state = *call.state;
  const Program &program = state.programs[launch.program];
  const RankChannel place = state.rank_channels[program.first_rank_channel + state.rank * program.nchannels + channel];
  if (place.nsteps == 0) return;
  const Step *steps = state.steps + place.first_step;

  char **slots = reinterpret_cast<char **>(shared_memory());
  ShareRange *shares = reinterpret_cast<ShareRange *>(shared_memory() + kMaxPeers * (sizeof(char *) + sizeof(uint64_t)));
  place_shares(state, program, launch.count, sizeof(T), launch.weights, shares);
#if !defined(COLLC_FAULT_SHARES_BARRIER)
  barrier();
#endif

  uint64_t iterations = 0;
#pragma unroll 1
  for (uint32_t s = 0; s < place.nsteps; ++s) {
    const uint64_t last = shares[steps[s].share].nchunks + steps[s].lag;
    if (last > iterations) iterations = last;
  }
  Counted<Verbs> verbs(state, call, launch, channel, steps, slots);
  Cursor at{0, 0};
  begin_tally();
  const Progress ended = run_channel(verbs, steps, place.nsteps, state.refs, shares, iterations, at);
  end_tally(state, channel);
  if (ended == Progress::kDone) verbs.finish(place.nsteps, state.refs, shares);
}

}  // namespace collc::cuda
