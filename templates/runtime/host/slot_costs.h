// Measures the cost of chunks in slots while calls run, for the choice between slots through the caches and past them
// (transport/slot_ways.h), and the cost of whole broadcasts (transport/pull_ways.h). Called by the threads that run channels;
// nothing here waits.
#pragma once
#include <algorithm>

#include "host/chunk_place.h"
#include "host/operands.h"

namespace collc {

// Returns true if the times of chunks of `bytes` count. The path of small chunks hardly matters. If ranks share cores it does
// not matter for larger chunks either, because caches contain them, and the measurements took a tenth of a call.
inline bool counts_slots(const ChannelContext &context, uint64_t bytes) {
  return bytes >= (context.cores_are_free ? kLeastByAddress : kLeastLearnt);
}

// Chooses how a chunk of `bytes` is written into a slot. Small chunks stay in the caches.
inline uint32_t choose_slot_way(ChannelContext &context, FifoEnd &end, uint64_t bytes) {
  if (!counts_slots(context, bytes)) return kThroughCaches;
  const auto readers = [&context, &end](uint32_t way) {
    uint64_t all = 0;
    for (uint32_t r = 0; r < end.nreaders; ++r) {
      const uint64_t one = end.heads[r].cost[way].load(std::memory_order_relaxed);
      if (one == 0) return one;
      all = context.cores_are_free ? std::max(all, one) : all + one;
    }
    return all;
  };
  return end.ways.next(context.running.streams_slots ? kPastCaches : kThroughCaches, context.fifos.slots(), readers);
}

// Publishes for the writers how long the chunks of one step took that came in slots. Relaxed: a cost orders no other data.
inline void count_reading(ChannelContext &context, const Step &step, const FifoRef *recv, const Chunk &chunk, uint64_t ticks) {
  const uint64_t bytes = chunk.elements * context.running.element_bytes;
  if (is_in_line(context.fifos, bytes)) return;
  for (uint32_t i = 0; i < step.nrecv; ++i) {
    FifoEnd &end = context.fifos[recv[i].fifo];
    const uint64_t tag = SlotTransport::tag(place_of(context.fifos, end, chunk));
    if ((tag & kByAddress) != 0) continue;
    const uint32_t way = (tag & kPast) != 0 ? kPastCaches : kThroughCaches;
    if (!end.run.settled(way, context.fifos.slots())) continue;
    std::atomic<uint32_t> &cost = end.heads->cost[way];
    cost.store(learned_cost(cost.load(std::memory_order_relaxed), ticks, bytes), std::memory_order_relaxed);
  }
}

// Notes how long this rank took to read a whole share of a broadcast, for the root.
inline void count_broadcast(ChannelContext &context, const Step &step, const FifoRef *recv, const ShareRange &share) {
  const uint64_t whole = (share.end - share.begin) * context.running.element_bytes;
  for (uint32_t i = 0; i < step.nrecv; ++i) {
    FifoEnd &end = context.fifos[recv[i].fifo];
    if (learns_pulls(context, end, whole))
      end.pull_reader.end(now_ticks(), whole, context.fifos.all_slots(), &end.heads->pulls);
  }
}

}  // namespace collc
