// Which chunks a rank sends as their address, and when it may overwrite what it has sent so.
#pragma once
#include <algorithm>

#include "host/channel.h"
#include "transport/transports.h"

namespace collc {

// Returns true if a step adds up several operands.
inline bool is_reduced(const Step &step) { return uint32_t{(step.flags & kInput) != 0} + step.nrecv > 1; }

// Returns true if a reader of a FIFO is far away.
inline bool is_far(const ChannelContext &context, const FifoEnd &end) {
  if (!context.distances.any_far()) return false;
  return std::any_of(end.readers, end.readers + end.nreaders,
                     [&context](uint32_t reader) { return context.distances.is_far(context.nccl_rank[reader]); });
}

// Returns true if the times of a share of a broadcast show its fastest path. The same at both ends.
inline bool learns_pulls(const ChannelContext &context, const FifoEnd &end, uint64_t bytes) {
  return context.running.learns_pulls && end.reach == Reach::kKernel && bytes >= PullCosts::kLeast;
}

// Returns true if the kernel copies the broadcast that begins, for all readers of a FIFO.
inline bool begins_pulled(const ChannelContext &context, FifoEnd &end, bool is_input, uint64_t bytes) {
  if (!is_input || !learns_pulls(context, end, bytes)) return context.running.pulled;
  if (end.pull_ways == nullptr) end.pull_ways = std::make_shared<PullWays>();
  const auto readers = [&end, bytes](uint32_t way) {
    uint32_t most = 0;
    for (uint32_t r = 0; r < end.nreaders; ++r) {
      const uint32_t one = end.heads[r].pulls.at(way, bytes);
      if (one == 0) return one;
      most = std::max(most, one);
    }
    return most;
  };
  const uint32_t first = context.running.pulled ? kPulled : kThroughSlots;
  return end.pull_ways->next(first, bytes, context.fifos.all_slots(), readers) == kPulled;
}

// Returns true if a chunk of `bytes` is sent as its address. Readers then read there, or have the kernel copy.
inline bool goes_by_address(const ChannelContext &context, const FifoEnd &end, const ShareRange &share, bool is_input,
                            bool is_result, uint64_t bytes) {
  const RunningCall &running = context.running;
  if (bytes < kLeastByAddress) return false;
  const bool kept = !is_input || running.keeps_input;
  if (end.reach == Reach::kShared) return kept;
  if (end.reach != Reach::kKernel) return false;
  if (end.pulled) return true;
  if (running.call->root >= 0) return false;  // it would only wait
  const bool far = is_far(context, end);
  const Thresholds &from = context.neighbors.thresholds().at(far);
  const uint64_t whole = (share.end - share.begin) * running.element_bytes;
  if (!is_result) {  // an input to be reduced
    if (!context.cores_are_free || !(kept || (running.awaits_fetching && end.only_copied))) return false;
    return running.sums_everywhere || (whole >= from.kernel_sums && whole < from.kernel_sums_end);
  }
  if (!kept) return false;
  // A call of the kernel costs more than a copy, but one copies all chunks of an input. What has just been made goes chunk by
  // chunk, and stands in a cache, where a copy into a slot costs little. The kernel cannot store past the caches.
  if (!is_input && (bytes < from.kernel_copied_chunks || (running.streams && !far))) return false;
  const uint64_t together = is_input ? whole : bytes;
  if (context.cores_are_free) return !is_input || (together >= from.kernel_copies && together < from.kernel_copies_end);
  // Readers need the writer's core. And the kernel cannot stream, which is worth more where cores are short.
  return together >= from.kernel_copies_crowded && !running.streams;
}

// True if what this channel has sent by address of that chunk of the input has been fetched. `slowest`: else who has not.
inline bool may_overwrite(ChannelContext &context, const ChannelState &channel, uint32_t share, const Chunk &chunk,
                          uint32_t *slowest) {
  for (uint32_t s = 0; s < channel.nsteps; ++s) {
    const Step &step = channel.steps[s];
    if (step.nrecv != 0 || step.share != share) continue;
    for (uint32_t i = 0; i < step.nsend; ++i) {
      FifoEnd &end = context.fifos[context.refs[step.first_ref + i].fifo];
      const uint64_t number = end.position + chunk.index;
      const ChunkPlace at{end, number, context.fifos.slot_of(number)};
      if ((SlotTransport::tag(at) & kByAddress) != 0 && end.least_fetched(slowest) <= number) return false;
    }
  }
  return true;
}

}  // namespace collc
