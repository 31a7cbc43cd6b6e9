// Moves one chunk of one step: from the inputs of the step, reduced in order, to everything that it writes. choose() decides
// before how each chunk that is sent travels, so run() only moves data.
//
// Owner: HostVerbs, for the time of one step. Nothing here waits.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "host/by_address.h"
#include "host/channel.h"
#include "host/chunk_place.h"
#include "host/operands.h"
#include "host/slot_costs.h"
#include "transport/transports.h"

namespace collc {

// One step of one chunk.
struct ChunkStep {
  const Step &step;
  const FifoRef *recv, *send;
  const ShareRange &share;
  const Chunk &chunk;
};

class ChunkMove {
 public:
  ChunkMove(ChannelContext &context, const ChunkStep &what)
      : context_(context), running_(context.running), what_(what), bytes_(what.chunk.elements * running_.element_bytes) {
    const Step &step = what.step;
    has_input_ = (step.flags & kInput) != 0, has_output_ = (step.flags & kOutput) != 0;
    input_ = static_cast<const char *>(running_.call->input) + (what.share.in_base + what.chunk.begin) * running_.element_bytes;
    output_ = static_cast<char *>(running_.call->output) + (what.share.out_base + what.chunk.begin) * running_.element_bytes;
    // Field by field: a copy of the whole struct would wait until the fields that were just stored have left the core.
    if ((step.flags & kFinal) != 0) finish_.divisor = running_.finish.divisor;
    std::memcpy(finish_.scale, running_.finish.scale, sizeof finish_.scale);
    const Operation &op = running_.call->op;
    // All ranks have the factor of an average, so inputs travel unscaled and are scaled where they are added.
    sends_unscaled_ = op.is_average && has_input_ && step.nrecv == 0 && !has_output_;
    scales_ = op.has_scale && (has_input_ ? !sends_unscaled_ : receives_unscaled());
    moves_only_ = uint32_t{has_input_} + step.nrecv == 1 && finish_.divisor == 1 && !scales_;
  }

  // Chooses where the step writes: the output, and for each send a slot, a line, or the address of the chunk. `own`: set to the
  // copy from input to output that may follow once the chunks are published.
  void choose(OwnCopy *own) {
    const Step &step = what_.step;
    const bool is_input = has_input_ && moves_only_;  // the step sends its input unchanged
    if (is_input && has_output_ && step.nsend > 0)
      *own = {input_, output_, bytes_};
    else if (has_output_)
      operands_.add(output_, nullptr, kThroughCaches);
    for (uint32_t i = 0; i < step.nsend; ++i) {
      choose_transport(context_.fifos[what_.send[i].fifo], is_input, i);
      if (running_.call->op.has_scale && sends_unscaled_) operands_.marks[i] |= kUnscaled;
    }
    if (has_output_ && own->bytes == 0 && running_.streams && !operands_.output_is_read) operands_.ways[0] = kPastCaches;
  }

  // Moves the chunk. Returns true if it computed, false if it only copied.
  bool run() {
    const Step &step = what_.step;
    const bool counts = counts_slots(context_, bytes_);
    const uint64_t begin = counts ? now_ticks() : 0;
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      if (has_input_ && i == step.input_at) operands_.add_source(input_, scales_);
      FifoEnd &end = context_.fifos[what_.recv[i].fifo];
      operands_.add_source(read(end), scales_ && is_unscaled(end));
    }
    if (has_input_ && step.input_at >= step.nrecv) operands_.add_source(input_, scales_);
    if (scales_) finish_.is_scaled = operands_.is_scaled;
    const bool reduces = operands_.ndests != 0 && !moves_only_;
    if (reduces) {
      finish_.streamed = operands_.past_first();
      running_.reduce(operands_.sources, operands_.nsources, operands_.dests, operands_.ndests, what_.chunk.elements, finish_);
    } else if (moves_only_) {
      copy(counts);
    }
    if (counts) {
      const uint64_t ticks = now_ticks() - begin;
      count_reading(context_, step, what_.recv, what_.chunk, ticks);
      for (uint32_t i = 0; reduces && i < operands_.ndests; ++i) count_writing(i, ticks);
    }
    return reduces;
  }

  // Writes the tags of the chunks that are sent. Must be the last stores before the numbers are published, because the readers
  // poll this line and take it away after each store.
  void write_tags() {
    const bool line = is_in_line(context_.fifos, bytes_);
    for (uint32_t i = 0; i < what_.step.nsend; ++i)
      tag_of(place(context_.fifos[what_.send[i].fifo]), line) = (running_.call->signature & ~kMarks) | operands_.marks[i];
  }

 private:
  ChunkPlace place(FifoEnd &end) const { return place_of(context_.fifos, end, what_.chunk); }
  bool is_unscaled(FifoEnd &end) const { return (tag_of(place(end), is_in_line(context_.fifos, bytes_)) & kUnscaled) != 0; }
  bool receives_unscaled() const {
    return std::any_of(what_.recv, what_.recv + what_.step.nrecv,
                       [&](const FifoRef &one) { return is_unscaled(context_.fifos[one.fifo]); });
  }

  // Chooses the transport of send number `i`. Its chunk is in the input or the output already, or nowhere.
  void choose_transport(FifoEnd &end, bool is_input, uint32_t i) {
    const ChunkPlace at = place(end);
    const char *const from = is_input ? input_ : has_output_ ? output_ : nullptr;
    operands_.marks[i] = running_.says_far ? kFar : 0;
    if (what_.chunk.index == 0) {
      const uint64_t whole = (what_.share.end - what_.share.begin) * running_.element_bytes;
      end.pulled = begins_pulled(context_, end, is_input, whole);
    }
    if (from != nullptr && goes_by_address(context_, end, what_.share, is_input, has_output_, bytes_)) {
      AddressTransport::write(at, from, bytes_);
      operands_.marks[i] |= kByAddress;
      end.direct = true;
      operands_.output_is_read |= !is_input;
    } else if (is_in_line(context_.fifos, bytes_)) {
      operands_.add(LineTransport::write(at), nullptr, kThroughCaches);
    } else if (end.reach != Reach::kWire) {
      const uint32_t way = choose_slot_way(context_, end, bytes_);
      operands_.add(SlotTransport::write(at, context_.fifos, bytes_, &operands_.marks[i]), &end, way);
      if (way == kPastCaches) operands_.marks[i] |= kPast;
    } else {
      operands_.add(WireTransport::write(at, context_.fifos, bytes_), nullptr, kThroughCaches);
    }
  }

  // Returns where a received chunk is. The kernel copies a chunk of another process to the first destination, unless the step
  // reduces it: then HostVerbs has had it copied before.
  const void *read(FifoEnd &end) {
    const ChunkPlace at = place(end);
    if (is_in_line(context_.fifos, bytes_)) return LineTransport::read(at);
    if ((SlotTransport::tag(at) & kByAddress) == 0) return SlotTransport::read(at, context_.fifos, bytes_);
    if (end.reach == Reach::kShared) return AddressTransport::read(at);
    if (is_reduced(what_.step)) return end.scratch;
    void *const to = operands_.dests[0];
    const uint32_t peer = context_.nccl_rank[end.source];
    // A slot has room for one chunk, the output for all.
    const uint64_t limit = (what_.step.flags & kOutput) != 0 ? end.position + what_.share.nchunks : at.number + 1;
    const Status copied = KernelCopyTransport::read(at, context_.fifos, context_.neighbors, peer, limit, to);
    if (!copied.ok()) fail_to_read(context_, copied);
    return to;
  }

  void copy(bool counts) {
    for (uint32_t i = 0; i < operands_.ndests; ++i) {
      if (operands_.dests[i] == operands_.sources[0]) continue;
      const bool is_counted = counts && operands_.slots[i] != nullptr;
      const uint64_t begin = is_counted ? now_ticks() : 0;
      copy_bytes(operands_.dests[i], operands_.sources[0], bytes_, operands_.ways[i]);
      if (is_counted) count_writing(i, now_ticks() - begin);
    }
  }
  void count_writing(uint32_t i, uint64_t ticks) {
    if (operands_.slots[i] != nullptr) operands_.slots[i]->ways.wrote(operands_.ways[i], context_.fifos.slots(), ticks, bytes_);
  }

  ChannelContext &context_;
  const RunningCall &running_;
  const ChunkStep &what_;
  const uint64_t bytes_;
  const char *input_;
  char *output_;
  bool has_input_, has_output_;
  bool sends_unscaled_;  // the step sends its input without the factor of the average
  bool scales_;  // the step multiplies some sources by the factor
  bool moves_only_;  // the step neither adds nor scales
  Finish finish_;
  Operands operands_;
};

}  // namespace collc
