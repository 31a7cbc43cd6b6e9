// Measures while calls run how far apart the cores of a writer and its readers are: by the time of a load of a line that the
// writer has just stored (the probe of a FIFO). Called by the threads that run channels; nothing here waits.
#pragma once
#include <algorithm>

#include "host/channel.h"
#include "transport/transports.h"

namespace collc {

// Both ends count these chunks, and each `kProbeEvery`th of them has a store in the probe before it. Small chunks do not count.
inline bool may_be_probed(const ChannelContext &context, const FifoEnd &end, uint64_t bytes) {
  return bytes >= kLeastByAddress && context.distances.measures() && end.reach != Reach::kWire;
}

// Looks once at the probe of each chunk of `bytes` bytes that has arrived: then the line is in the cache of its writer.
inline void look_at_probe(ChannelContext &context, const ChunkPlace &at, uint64_t bytes) {
  FifoEnd &end = at.end;
  if (!may_be_probed(context, end, bytes) || end.probed > at.number) return;
  end.probed = at.number + 1;
  if (end.large++ % kProbeEvery != 0) return;
  const uint32_t peer = context.nccl_rank[end.source];
  context.distances.loaded(peer, time_load(*end.probe));
  end.heads->is_far.store(context.distances.is_far(peer) ? 1 : 0, std::memory_order_relaxed);
}

// Reads the heads of a FIFO whose chunks have `bytes` bytes, and sets `slowest` to the reader that is behind. What the readers
// report of the distance counts once for each chunk that they have read, not for each look.
inline void look_at_heads(ChannelContext &context, FifoEnd &end, uint64_t bytes, uint32_t *slowest) {
  const uint64_t before = end.seen;
  const bool knows = bytes < kLeastByAddress && end.before > before && end.was_read_before(context.heard);
  end.seen = knows ? end.before : end.least_head(slowest);
  if (end.seen == before || bytes < kLeastByAddress || !context.distances.measures()) return;
  const auto chunks = static_cast<uint32_t>(std::min<uint64_t>(end.seen - before, UINT32_MAX));
  for (uint32_t r = 0; r < end.nreaders; ++r) {
    const bool is_far = end.heads[r].is_far.load(std::memory_order_relaxed) != 0;
    context.distances.told(context.nccl_rank[end.readers[r]], is_far, chunks);
  }
}

}  // namespace collc
