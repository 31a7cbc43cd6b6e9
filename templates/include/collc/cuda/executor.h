// What a block does: one channel of one rank, by the step program that all targets share.
#pragma once
#include "collc/cuda/ll.h"
#include "collc/cuda/ll128.h"
#include "collc/cuda/simple.h"
#include "collc/cuda/tally.h"

namespace collc::cuda {

// This call's share ranges, computed by all threads; a barrier must follow. The warps in the middle begin, those at both ends
// of the block are at tables (cache_tables): what is small is done side by side.
COLLC_DEVICE void place_shares(const RankState &state, const Launch &launch, uint32_t element_bytes, ShareRange *ranges) {
  const Inverted most{launch.chunk_units, launch.chunk_inverse};
  const auto *rows = table_at<const DeviceShare>(state, launch.shares_at);
  const uint32_t half = thread_count() / 2, first = thread_index() + half;
#pragma unroll 1
  for (uint32_t s = first < thread_count() ? first : first - thread_count(); s < launch.nshares; s += thread_count()) {
    const DeviceShare row = rows[s];
    const Inverted den{row.share.den, row.inverse};
    ShareRange range = cut_share(row.share, den, most, launch.count, element_bytes, launch.weights);
    place_block(static_cast<Collective>(launch.collective), state.nranks, row.share.block, launch.count, range);
    ranges[s] = range;
  }
}

// Of a call whose classes are timed: nothing waits for these stores, and nothing is ordered by them.
COLLC_DEVICE void note_time(const RankState &state, const Launch &launch, uint32_t channel, bool ends) {
  if (launch.timed == 0 || thread_index() != 0) return;
  ChannelTime &mine = state.times[launch.timed % kTimesKept * state.ntimes + channel];
  const uint64_t time = uint64_t{launch.timed} << kTimeBits | (clock_ns() & ((uint64_t{1} << kTimeBits) - 1));
  *static_cast<volatile uint64_t *>(ends ? &mine.ended : &mine.begun) = time;
}

static_assert(sizeof(ShareRange) == kShareBytes, "shared_bytes() counts on it");

// A channel's tables in shared memory at `at`, where all threads copy them, ends from the first one on and steps from the last;
// a barrier must follow. Each reference names an end of its own, so that reference r is to end r here; in place of its reader,
// which no kernel looks at, it has the end's number among the rank's. How many there are is not asked for: that would be a load
// before these.
COLLC_DEVICE ChannelTables cache_tables(const Launch &launch, const ChannelTables &home, char *at) {
  auto *steps = reinterpret_cast<Step *>(at);
  auto *ends = reinterpret_cast<FifoEnd *>(steps + launch.most_steps);
  auto *refs = reinterpret_cast<FifoRef *>(ends + launch.most_refs);
#pragma unroll 1
  for (uint32_t r = thread_index(); r < launch.most_refs; r += thread_count()) {
    const uint32_t end = home.refs[r].fifo;
    if (end == kNoEnd) break;
    ends[r] = home.ends[end];
    refs[r] = {r, end};
  }
#pragma unroll 1
  for (uint32_t s = thread_count() - 1 - thread_index(); s < launch.most_steps; s += thread_count()) steps[s] = home.steps[s];
  return {steps, refs, ends};
}

// By a warp that mostly has nothing else to look up: who looks at what it has loaded waits for it. A barrier must follow.
COLLC_DEVICE void fetch_row(const RankState &state, const Launch &launch, uint32_t channel, DeviceChannel *row) {
  if (thread_index() == thread_count() / 4) *row = *channel_row(state, launch, channel);
}

// Runs the steps that the tables have. The other one is in specialised.h.
struct TableExecutor {
  template <class Verbs>
  static COLLC_DEVICE Progress run(Verbs &verbs, const ChannelTables &tables, const DeviceChannel &channel,
                                   const ShareRange *shares, uint64_t iterations) {
    Cursor at{0, 0};
    return run_channel(verbs, tables.steps, channel.nsteps, tables.refs, shares, iterations, at);
  }
};

// `Verbs` is a protocol: Simple, LL or LL128.
template <class T, class Verbs, class Executor = TableExecutor>
COLLC_DEVICE void run_block(const Launch &launch) {
  const RankCall &call = launch.ranks[block_index() / launch.nchannels];
  const uint32_t channel = block_index() % launch.nchannels;
  const RankState &state = *call.state;

  char **slots = reinterpret_cast<char **>(shared_memory());
  auto *row = reinterpret_cast<DeviceChannel *>(shared_memory() + kMaxPeers * (sizeof(char *) + sizeof(uint64_t)));
  auto *shares = reinterpret_cast<ShareRange *>(row + 1);
  ChannelTables tables = tables_at_home(state, launch, channel);
  if (launch.cached != 0) tables = cache_tables(launch, tables, reinterpret_cast<char *>(shares + launch.nshares));
  place_shares(state, launch, sizeof(T), shares);
  fetch_row(state, launch, channel, row);
  barrier();
  const DeviceChannel place = *row;
  if (place.nsteps == 0) return;
  note_time(state, launch, channel, false);

  uint64_t iterations = 0;
#pragma unroll 1
  for (uint32_t s = 0; s < place.nsteps; ++s) {
    const uint64_t last = shares[tables.steps[s].share].nchunks + tables.steps[s].lag;
    if (last > iterations) iterations = last;
  }
  Counted<Verbs> verbs(state, call, launch, channel, tables, slots);
  begin_tally();
  const Progress ended = Executor::run(verbs, tables, place, shares, iterations);
  end_tally(state, channel);
  if (ended != Progress::kDone) return;
  verbs.finish(place.nsteps, tables.refs, shares);
  note_time(state, launch, channel, true);
}

}  // namespace collc::cuda
