// The work of a block: one channel of one rank, by the step program that all targets share.
#pragma once
#include "collc/cuda/ll.h"
#include "collc/cuda/ll128.h"
#include "collc/cuda/simple.h"
#include "collc/cuda/tally.h"

namespace collc::cuda {

// Computes this call's share ranges, by all threads. The caller must synchronize the block before reading them. The middle
// warps start, because the warps at both ends of the block copy tables (cache_tables), and small pieces of work run in
// parallel.
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

// Stores when a channel starts or ends a timed call. Nothing waits for these stores, and they order nothing.
COLLC_DEVICE void note_time(const RankState &state, const Launch &launch, uint32_t channel, bool ends) {
  if (launch.timed == 0 || thread_index() != 0) return;
  ChannelTime &mine = state.times[launch.timed % kTimesKept * state.ntimes + channel];
  const uint64_t time = uint64_t{launch.timed} << kTimeBits | (clock_ns() & ((uint64_t{1} << kTimeBits) - 1));
  *static_cast<volatile uint64_t *>(ends ? &mine.ended : &mine.begun) = time;
}

static_assert(sizeof(ShareRange) == kShareBytes, "shared_bytes() counts on it");

// Copies a channel's tables to shared memory at `at`, by all threads: ends from the first thread on, steps from the last one
// on. The caller must synchronize the block before reading them. Each reference names a different end, so reference r is to
// end r here. Instead of FifoRef::reader, which no kernel reads, it contains the end's number among the rank's ends. The
// number of references is not loaded before, because that load would delay these.
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

// One thread of a mostly idle warp loads the channel's row, because a warp stalls until the data that it has loaded arrive.
// The caller must synchronize the block before reading the row.
COLLC_DEVICE void fetch_row(const RankState &state, const Launch &launch, uint32_t channel, DeviceChannel *row) {
  if (thread_index() == thread_count() / 4) *row = *channel_row(state, launch, channel);
}

// Runs the steps of the tables. The other executor is in specialised.h.
struct TableExecutor {
  template <class Verbs>
  static COLLC_DEVICE Progress run(Verbs &verbs, const ChannelTables &tables, const DeviceChannel &channel,
                                   const ShareRange *shares, uint64_t iterations) {
    Cursor at{0, 0};
    return run_channel(verbs, tables.steps, channel.nsteps, tables.refs, shares, iterations, at);
  }
};

// `Verbs` is a protocol, such as Simple, LL or LL128.
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
