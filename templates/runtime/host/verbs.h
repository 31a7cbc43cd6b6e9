// The host's verbs for the step program: a wait that would block returns, so that one thread can run many channels and
// ranks.
//
// A chunk travels in a slot, or, where its readers reach the writer's memory and it is large, the slot holds only its
// address: that of the writer's input, or of its output once the chunk stands there. The writer's call then ends after its
// readers have read. Data read this way cannot change before that: an input chunk is only overwritten (in place) by a
// result that its reader has reduced from it (where a rank does that itself, `keeps_input` is false), and an output chunk is
// written once.
//
// What the kernel copies to be reduced goes chunk by chunk into the reader's scratch, as soon as it is there; the reader says
// so (`fetched`). A rank that reduces what it sends, in place (`awaits_fetching`), stores a chunk of the result once all readers
// of that chunk of its input have said it. No rank waits before it has fetched what is there, so none waits for itself.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "executor/backend.h"
#include "host/by_address.h"
#include "host/channel.h"
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
      const uint64_t written = tag(at, line);
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
    if (times_ == nullptr) {
      move_chunk(step, recv, send, share, chunk);
      return;
    }
    const uint64_t begin = now_ns();
    const bool reduced = move_chunk(step, recv, send, share, chunk);
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

  // True if it computed, false if it only moved data.
  bool move_chunk(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share, const Chunk &chunk) {
    const uint64_t bytes = chunk.elements * running_.element_bytes;
    const char *input =
        static_cast<const char *>(running_.call->input) + (share.in_base + chunk.begin) * running_.element_bytes;
    char *output = static_cast<char *>(running_.call->output) + (share.out_base + chunk.begin) * running_.element_bytes;
    const bool has_input = (step.flags & kInput) != 0, has_output = (step.flags & kOutput) != 0;
    Finish finish;  // part by part: a copy of the whole would wait until what was stored before has left the core
    if ((step.flags & kFinal) != 0) finish.divisor = running_.finish.divisor;
    std::memcpy(finish.scale, running_.finish.scale, sizeof finish.scale);
    const Operation &op = running_.call->op;
    // All ranks have the factor of an average, so inputs travel as they stand and are scaled where they are added.
    const bool sends_unscaled = op.is_average && has_input && step.nrecv == 0 && !has_output;
    const bool scales = op.has_scale && (has_input ? !sends_unscaled : any_unscaled(step, recv, chunk));
    const bool moves_only = uint32_t{has_input} + step.nrecv == 1 && finish.divisor == 1 && !scales;

    Operands operands;
    const bool is_input = has_input && moves_only;  // what is sent is the input as it stands
    if (is_input && has_output && step.nsend > 0)
      own_ = {input, output, bytes};
    else if (has_output)
      operands.add(output, nullptr, kThroughCaches);
    for (uint32_t i = 0; i < step.nsend; ++i) {
      const char *const stands = is_input ? input : has_output ? output : nullptr;
      write(fifos_[send[i].fifo], share, chunk, is_input, has_output, stands, i, operands);
      if (op.has_scale && sends_unscaled) operands.marks[i] |= kUnscaled;
    }
    if (has_output && own_.bytes == 0 && running_.streams && !operands.output_is_read) operands.ways[0] = kPastCaches;
    const bool counts = learns(bytes);  // what it costs
    const uint64_t begin = counts ? now_ticks() : 0;
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      if (has_input && i == step.input_at) operands.add_source(input, scales);
      FifoEnd &end = fifos_[recv[i].fifo];
      operands.add_source(read(end, step, share, chunk, operands.dests[0]), scales && is_unscaled(end, chunk));
    }
    if (has_input && step.input_at >= step.nrecv) operands.add_source(input, scales);
    if (scales) finish.is_scaled = operands.is_scaled;

    const bool reduces = operands.ndests != 0 && !moves_only;
    if (reduces) {
      finish.streamed = operands.past_first();
      running_.reduce(operands.sources, operands.nsources, operands.dests, operands.ndests, chunk.elements, finish);
    } else if (moves_only) {
      copy(operands, bytes);
    }
    if (counts) {
      const uint64_t ticks = now_ticks() - begin;
      learn_reading(step, recv, chunk, ticks, bytes);
      for (uint32_t i = 0; reduces && i < operands.ndests; ++i)
        if (operands.slots[i] != nullptr) operands.slots[i]->ways.wrote(operands.ways[i], fifos_.slots(), ticks, bytes);
    }
    if (running_.learns_pulls && chunk.index + 1 == share.nchunks) end_pulls(step, recv, share);
    // Last, just before the number: the readers look at this line all the time, and take it away after each store.
    const bool line = in_line(chunk);
    for (uint32_t i = 0; i < step.nsend; ++i)
      tag(place(fifos_[send[i].fifo], chunk), line) = (running_.call->signature & ~kMarks) | operands.marks[i];
    return reduces;
  }

  // Notes how long this rank took to read a whole share of a broadcast, for the root.
  void end_pulls(const Step &step, const FifoRef *recv, const ShareRange &share) {
    const uint64_t whole = (share.end - share.begin) * running_.element_bytes;
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      FifoEnd &end = fifos_[recv[i].fifo];
      if (learns_pulls(context_, end, whole)) end.pull_reader.end(now_ticks(), whole, fifos_.all_slots(), &end.heads->pulls);
    }
  }

  bool is_unscaled(FifoEnd &end, const Chunk &chunk) const { return (tag(place(end, chunk), in_line(chunk)) & kUnscaled) != 0; }
  bool any_unscaled(const Step &step, const FifoRef *recv, const Chunk &chunk) const {
    return std::any_of(recv, recv + step.nrecv, [&](const FifoRef &one) { return is_unscaled(fifos_[one.fifo], chunk); });
  }

  void copy(const Operands &operands, uint64_t bytes) const {
    for (uint32_t i = 0; i < operands.ndests; ++i) {
      if (operands.dests[i] == operands.sources[0]) continue;
      FifoEnd *slot = learns(bytes) ? operands.slots[i] : nullptr;
      const uint64_t begin = slot != nullptr ? now_ticks() : 0;
      copy_bytes(operands.dests[i], operands.sources[0], bytes, operands.ways[i]);
      if (slot != nullptr) slot->ways.wrote(operands.ways[i], fifos_.slots(), now_ticks() - begin, bytes);
    }
  }

  void count_copying(uint64_t begin) {
    if (times_ == nullptr) return;
    times_->copying += now_ns() - begin;
    channel_.busy_ns += now_ns() - begin;
  }

  // What came in slots, for their writers.
  void learn_reading(const Step &step, const FifoRef *recv, const Chunk &chunk, uint64_t ticks, uint64_t bytes) {
    if (in_line(chunk)) return;
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      FifoEnd &end = fifos_[recv[i].fifo];
      const uint64_t tag = SlotTransport::tag(place(end, chunk));
      if ((tag & kByAddress) != 0) continue;
      const uint32_t way = (tag & kPast) != 0 ? kPastCaches : kThroughCaches;
      if (!end.run.settled(way, fifos_.slots())) continue;
      std::atomic<uint32_t> &cost = end.heads->cost[way];
      cost.store(learned_cost(cost.load(std::memory_order_relaxed), ticks, bytes), std::memory_order_relaxed);
    }
  }

  // Whether it is learnt what chunks in slots cost. It hardly matters of small ones. Where ranks share cores it does not of larger
  // ones either, for their caches hold them, and the readings and trials themselves took a tenth of a call.
  bool learns(uint64_t bytes) const { return bytes >= (context_.cores_are_free ? kLeastByAddress : kLeastLearnt); }

  // Small chunks stay in the caches.
  uint32_t slot_way(FifoEnd &end, uint64_t bytes) const {
    if (!learns(bytes)) return kThroughCaches;
    const auto readers = [this, &end](uint32_t way) {
      uint64_t all = 0;
      for (uint32_t r = 0; r < end.nreaders; ++r) {
        const uint64_t one = end.heads[r].cost[way].load(std::memory_order_relaxed);
        if (one == 0) return one;
        all = context_.cores_are_free ? std::max(all, one) : all + one;
      }
      return all;
    };
    return end.ways.next(running_.streams_slots ? kPastCaches : kThroughCaches, fifos_.slots(), readers);
  }

  // Chooses the transport of what send number `i` writes, which stands at `from` already or, if null, nowhere.
  void write(FifoEnd &end, const ShareRange &share, const Chunk &chunk, bool is_input, bool is_result, const void *from,
             uint32_t i, Operands &operands) {
    const ChunkPlace at = place(end, chunk);
    const uint64_t bytes = chunk.elements * running_.element_bytes;
    operands.marks[i] = running_.says_far ? kFar : 0;
    if (chunk.index == 0)
      end.pulled = begins_pulled(context_, end, is_input, (share.end - share.begin) * running_.element_bytes);
    if (from != nullptr && goes_by_address(context_, end, share, is_input, is_result, bytes)) {
      AddressTransport::write(at, from, bytes);
      operands.marks[i] |= kByAddress;
      end.direct = true;
      operands.output_is_read |= !is_input;
    } else if (in_line(chunk)) {
      operands.add(LineTransport::write(at), nullptr, kThroughCaches);
    } else if (end.reach != Reach::kWire) {
      const uint32_t way = slot_way(end, bytes);
      operands.add(SlotTransport::write(at, fifos_, bytes, &operands.marks[i]), &end, way);
      if (way == kPastCaches) operands.marks[i] |= kPast;
    } else {
      operands.add(WireTransport::write(at, fifos_, bytes), nullptr, kThroughCaches);
    }
  }

  // Where a received chunk is; `to`: where the kernel may put it, which is where the step puts it unless it is reduced.
  const void *read(FifoEnd &end, const Step &step, const ShareRange &share, const Chunk &chunk, void *to) {
    const ChunkPlace at = place(end, chunk);
    if (in_line(chunk)) return LineTransport::read(at);
    if ((SlotTransport::tag(at) & kByAddress) == 0) return SlotTransport::read(at, fifos_, bytes_of(chunk));
    if (end.reach == Reach::kShared) return AddressTransport::read(at);
    if (is_reduced(step)) return end.scratch;  // fetched before
    const uint32_t peer = context_.nccl_rank[end.source];
    // In a slot there is room for one chunk.
    const uint64_t limit = (step.flags & kOutput) != 0 ? end.position + share.nchunks : at.number + 1;
    const Status copied = KernelCopyTransport::read(at, fifos_, context_.neighbours, peer, limit, to);
    if (!copied.ok()) fail_to_read(copied);
    return to;
  }

  void fail_to_read(const Status &why) {
    context_.segment.abort(why, context_.rank);
    context_.failed_to_read = true;
  }

  // Has the kernel copy what a step reduces of other processes. Then waits for those who do the same with what the step
  // overwrites.
  Progress fetch_inputs(const Step &step, const FifoRef *recv, const Chunk &chunk) {
    if (in_line(chunk)) return Progress::kDone;
    if (reads_memory_) {
      const uint64_t begin = times_ != nullptr ? now_ns() : 0;
      for (uint32_t i = 0; i < step.nrecv; ++i) {
        FifoEnd &end = fifos_[recv[i].fifo];
        const ChunkPlace at = place(end, chunk);
        if (end.reach != Reach::kKernel || (SlotTransport::tag(at) & kByAddress) == 0 || at.number < end.fetched) continue;
        const uint32_t peer = context_.nccl_rank[end.source];
        const Status copied = KernelCopyTransport::fetch(at, context_.neighbours, peer);
        if (!copied.ok()) {
          fail_to_read(copied);
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

  // True if the chunk travels in its slot's line; the same at both ends.
  bool in_line(const Chunk &chunk) const { return bytes_of(chunk) <= fifos_.line_bytes(); }
  uint64_t bytes_of(const Chunk &chunk) const { return chunk.elements * running_.element_bytes; }
  ChunkPlace place(FifoEnd &end, const Chunk &chunk) const {
    const uint64_t number = end.position + chunk.index;
    return {end, number, fifos_.slot_of(number)};
  }
  static uint64_t &tag(const ChunkPlace &at, bool line) { return line ? LineTransport::tag(at) : SlotTransport::tag(at); }
  static bool has_arrived(const ChunkPlace &at, bool line) {
    if (line) return LineTransport::number(at).load(std::memory_order_seq_cst) > at.number;
    if (at.end.seen > at.number) return true;
    at.end.seen = SlotTransport::number(at).load(std::memory_order_seq_cst);
    return at.end.seen > at.number;
  }

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
