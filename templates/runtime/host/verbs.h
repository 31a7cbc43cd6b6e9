// The host's verbs for the step program: a wait that would block returns, so that one thread can run many channels and ranks.
//
// A chunk travels in a slot. If it is large and its readers reach the writer's memory, the slot contains only its address: in
// the writer's input, or in its output once the chunk is there. The writer's call then ends after its readers have read. The
// data cannot change before that. In place, an input chunk is overwritten only by a result that its reader has reduced from it;
// if the rank itself overwrites it, `keeps_input` is false. An output chunk is written once.
//
// If the kernel copies chunks that are reduced, it copies each into the reader's scratch memory as soon as the chunk is there.
// The reader publishes that (`fetched`). A rank that reduces its sent input in place (`awaits_fetching`) stores a chunk of the
// result once all readers of that chunk of its input have fetched it. Each rank fetches all chunks that are there before it
// waits, so no rank waits for itself.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "executor/backend.h"
#include "host/by_address.h"
#include "host/channel.h"
#include "host/chunk_move.h"
#include "host/distance_probe.h"
#include "host/operands.h"
#include "transport/transports.h"

namespace collc {

class HostVerbs {
 public:
  // `receives`: how many steps that receive may run. `times`: where their time is counted; null: nowhere.
  HostVerbs(ChannelContext &context, ChannelState &channel, uint32_t receives, ChannelTimes *times)
      : context_(context),
        fifos_(context.fifos),
        running_(context.running),
        channel_(channel),
        receives_(receives),
        times_(times) {}

  Progress wait(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    reads_memory_ = false;
    if (step.nrecv > 0 && receives_ == 0) return Progress::kBlocked;
    const bool line = in_line(chunk);
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      FifoEnd &end = fifos_[recv[i].fifo];
      const ChunkPlace at = place(end, chunk);
      if (!has_arrived(at, line)) return block(end.source, chunk);
      const uint64_t written = tag_of(at, line);
      if (chunk.index == 0) {
        if (((written ^ running_.call->signature) & ~kMarks) != 0) return differs(end.source, chunk);
        context_.running.hears_far |= (written & kFar) != 0;
        context_.heard[end.source] = running_.call->number;
        if (running_.learns_pulls) end.pull_reader.begin(now_ticks(), (written & kByAddress) != 0 ? kPulled : kThroughSlots);
      }
      look_at_probe(context_, at, bytes_of(chunk));
      reads_memory_ |= (written & kByAddress) != 0;
    }
    for (uint32_t i = 0; i < step.nsend; ++i) {
      FifoEnd &end = fifos_[send[i].fifo];
      const uint64_t passed = end.position + chunk.index;
      if (passed < end.seen + fifos_.slots()) continue;
      uint32_t slowest = 0;
      look_at_heads(context_, end, bytes_of(chunk), &slowest);
      if (passed >= end.seen + fifos_.slots()) return block(slowest, chunk);
    }
    if (step.nsend > 0 && context_.throttle.is_set() && context_.throttle.holds(channel_.part, sent_bytes(step, chunk)))
      return Progress::kBlocked;
    if (const Progress begun = begin_reading(); begun != Progress::kDone) return begun;
    return is_reduced(step) ? fetch_inputs(step, recv, chunk) : Progress::kDone;
  }

  void move(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share, const Chunk &chunk) {
    const uint64_t begin = times_ != nullptr ? now_ns() : 0;
    const ChunkStep what{step, recv, send, share, chunk};
    ChunkMove move(context_, what);
    move.choose(&own_);
    const bool reduced = move.run();
    if (running_.learns_pulls && chunk.index + 1 == share.nchunks) count_broadcast(context_, step, recv, share);
    move.write_tags();
    if (times_ == nullptr) return;
    const uint64_t spent = now_ns() - begin;
    (reduced ? times_->reducing : times_->copying) += spent;
    channel_.busy_ns += spent;
  }

  void publish(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    Segment &segment = context_.segment;
    if (step.nrecv > 0) --receives_;
    if (end_reading()) return;
    if (context_.throttle.is_set()) context_.throttle.sent(channel_.part, sent_bytes(step, chunk));
    // Either a rank that falls asleep sees the number at its second look, or we see that it sleeps.
    for (uint32_t i = 0; i < step.nsend; ++i) {
      FifoEnd &end = fifos_[send[i].fifo];
      const ChunkPlace at = place(end, chunk);
      if (may_be_probed(context_, end, bytes_of(chunk)) && end.large++ % kProbeEvery == 0)
        end.probe->store(at.number, std::memory_order_relaxed);
      segment.show(in_line(chunk) ? LineTransport::number(at) : SlotTransport::number(at), at.number + 1);
      for (uint32_t r = 0; r < end.nreaders; ++r) segment.ring(context_.nccl_rank[end.readers[r]]);
      if (context_.cores_are_free && !in_line(chunk)) SlotTransport::ask_ahead(at, fifos_, bytes_of(chunk));
    }
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      FifoEnd &end = fifos_[recv[i].fifo];
      segment.show(end.head(0), end.position + chunk.index + 1);
      segment.ring(context_.nccl_rank[end.source]);
    }
    if (own_.bytes == 0) return;
    const uint64_t begin = times_ != nullptr ? now_ns() : 0;
    own_.run(running_.streams ? kPastCaches : kThroughCaches);
    count_copying(begin);
  }

  // True when everything that this channel has sent by address has been read.
  bool drained(const ShareRange *shares) {
    for (uint32_t s = 0; s < channel_.nsteps; ++s) {
      const Step &step = channel_.steps[s];
      for (uint32_t i = 0; i < step.nsend; ++i) {
        FifoEnd &end = fifos_[context_.refs[step.first_ref + step.nrecv + i].fifo];
        if (!end.direct) continue;
        uint32_t slowest = 0;
        look_at_heads(context_, end, kLeastByAddress, &slowest);
        if (end.seen < end.position + shares[step.share].nchunks) {
          channel_.blocked_on = slowest;
          channel_.chunk = std::max(end.seen, end.position) - end.position;
          return false;
        }
        end.direct = false;
      }
    }
    return true;
  }

 private:
  uint64_t sent_bytes(const Step &step, const Chunk &chunk) const { return step.nsend * bytes_of(chunk); }

  void count_copying(uint64_t begin) {
    if (times_ == nullptr) return;
    times_->copying += now_ns() - begin;
    channel_.busy_ns += now_ns() - begin;
  }

  // Has the kernel copy the chunks of other processes that a step reduces. Then waits for the readers that fetch the chunk of
  // the input that the step overwrites.
  Progress fetch_inputs(const Step &step, const FifoRef *recv, const Chunk &chunk) {
    if (in_line(chunk)) return Progress::kDone;
    if (reads_memory_) {
      const uint64_t begin = times_ != nullptr ? now_ns() : 0;
      for (uint32_t i = 0; i < step.nrecv; ++i) {
        FifoEnd &end = fifos_[recv[i].fifo];
        const ChunkPlace at = place(end, chunk);
        if (end.reach != Reach::kKernel || (SlotTransport::tag(at) & kByAddress) == 0 || at.number < end.fetched) continue;
        const uint32_t peer = context_.nccl_rank[end.source];
        const Status copied = KernelCopyTransport::fetch(at, context_.neighbors, peer);
        if (!copied.ok()) {
          fail_to_read(context_, copied);
          end_reading();
          return broken();
        }
        context_.segment.show(end.heads->fetched, at.number + 1);
        context_.segment.ring(peer);
      }
      count_copying(begin);
    }
    uint32_t slowest = 0;
    if (!running_.awaits_fetching || (step.flags & kOutput) == 0 ||
        may_overwrite(context_, channel_, step.share, chunk, &slowest))
      return Progress::kDone;
    return end_reading() ? broken() : block(slowest, chunk);
  }

  bool in_line(const Chunk &chunk) const { return is_in_line(fifos_, bytes_of(chunk)); }
  uint64_t bytes_of(const Chunk &chunk) const { return chunk.elements * running_.element_bytes; }
  ChunkPlace place(FifoEnd &end, const Chunk &chunk) const { return place_of(fifos_, end, chunk); }

  Progress block(uint32_t plan_rank, const Chunk &chunk) {
    channel_.blocked_on = plan_rank;
    channel_.chunk = chunk.index;
    return Progress::kBlocked;
  }

  // A chunk of another call has arrived. Its writer may not have said yet what it calls.
  Progress differs(uint32_t plan_rank, const Chunk &chunk) {
    context_.failure = find_difference(context_.segment, context_.rank, context_.nccl_rank[plan_rank], *running_.call);
    return context_.failure.ok() ? block(plan_rank, chunk) : Progress::kAborted;
  }

  // Before another rank's memory is read. A rank that breaks the communicator may free its buffers: it sets `aborted` first,
  // then waits until no rank of its process reads.
  Progress begin_reading() {
    if (context_.failed_to_read) return broken();
    if (!reads_memory_) return Progress::kDone;
    Segment &segment = context_.segment;
    segment.show(segment.line(context_.rank).reading, 1u);
    if (!segment.aborted()) return Progress::kDone;
    segment.line(context_.rank).reading.store(0, std::memory_order_release);
    return broken();
  }

  // True if what was read may not be what the other rank sent: then nothing of it may go on.
  bool end_reading() {
    if (!reads_memory_) return false;
    Segment &segment = context_.segment;
    // The look at `aborted` comes after that, and so after all that was read.
    segment.show(segment.line(context_.rank).reading, 0u);
    context_.failed_to_read |= segment.aborted();
    return context_.failed_to_read;
  }

  Progress broken() {
    context_.failure = context_.segment.abort_status(context_.rank);
    return Progress::kAborted;
  }

  ChannelContext &context_;
  Fifos &fifos_;
  const RunningCall &running_;
  ChannelState &channel_;
  uint32_t receives_;
  ChannelTimes *times_;
  bool reads_memory_ = false;  // the step reads another rank's memory
  OwnCopy own_;  // of the step, still to be done
};

}  // namespace collc
