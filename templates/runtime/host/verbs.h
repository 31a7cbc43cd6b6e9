// The host's verbs for the step program: a wait that would block returns, so that one thread can run many channels and
// ranks.
//
// A chunk travels in a slot, or, where its readers reach the writer's memory and it is large, the slot holds only its
// address: that of the writer's input, or of its output once the chunk stands there. The writer's call then ends after its
// readers have read. What is read so cannot change before: an input chunk is only overwritten (in place) by a result that
// its reader has reduced from it (where a rank does that itself, `keeps_input_` is false), and an output chunk is written
// once.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "host/rank.h"
#include "host/waiting.h"

namespace collc {

class HostVerbs {
 public:
  // `receives`: how many steps that receive may run.
  HostVerbs(HostRank &rank, HostRank::ChannelState &channel, uint32_t receives)
      : rank_(rank), channel_(channel), receives_(receives) {}

  Progress wait(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    direct_ = false;
    if (step.nrecv > 0 && receives_ == 0) return Progress::kBlocked;
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      HostRank::End &end = rank_.ends_[recv[i].fifo];
      const uint64_t need = end.position + chunk.index + 1;
      if (in_line(chunk)) {
        if (line_of(end, chunk).number.load(std::memory_order_seq_cst) < need) return block(end.source, chunk);
      } else if (end.seen < need) {
        end.seen = end.tail->load(std::memory_order_seq_cst);
        if (end.seen < need) return block(end.source, chunk);
      }
      const uint64_t written = tag(end, chunk);
      if (chunk.index == 0 && ((written ^ rank_.call_->signature) & ~kDirect) != 0) {
        const Status differs = rank_.differing_call(end.source);
        if (differs.ok()) return block(end.source, chunk);
        rank_.fail_all(differs);
        return Progress::kAborted;
      }
      direct_ |= (written & kDirect) != 0;
    }
    for (uint32_t i = 0; i < step.nsend; ++i) {
      HostRank::End &end = rank_.ends_[send[i].fifo];
      const uint64_t passed = end.position + chunk.index;
      if (passed < end.seen + rank_.slots_) continue;
      uint32_t slowest = 0;
      end.seen = least_head(end, &slowest);
      if (passed >= end.seen + rank_.slots_) return block(slowest, chunk);
    }
    return begin_reading();
  }

  void move(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share, const Chunk &chunk) {
    if (!rank_.timed_) {
      move_chunk(step, recv, send, share, chunk);
      return;
    }
    const uint64_t begin = now_ns();
    const bool reduced = move_chunk(step, recv, send, share, chunk);
    rank_.count_time(static_cast<size_t>(&channel_ - rank_.channels_.data()), now_ns() - begin, reduced);
  }

  // True if it computed, false if it only moved data.
  bool move_chunk(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share, const Chunk &chunk) {
    const uint64_t bytes = chunk.elements * rank_.element_bytes_;
    const char *input = static_cast<const char *>(rank_.call_->input) + (share.in_base + chunk.begin) * rank_.element_bytes_;
    char *output = static_cast<char *>(rank_.call_->output) + (share.out_base + chunk.begin) * rank_.element_bytes_;
    const bool has_input = (step.flags & kInput) != 0, has_output = (step.flags & kOutput) != 0;
    Finish finish = rank_.finish_;
    if ((step.flags & kFinal) == 0) finish.divisor = 1;
    if (has_input && rank_.call_->op.scaled) finish.scaled = step.input_at;
    const bool moves_only = uint32_t{has_input} + step.nrecv == 1 && finish.divisor == 1 && finish.scaled == Finish::kNone;

    const void *sources[kMostPeers + 1];
    void *dests[kMostPeers + 1];
    uint8_t marks[kMostPeers + 1];
    uint32_t nsources = 0, ndests = 0;
    const bool is_input = has_input && moves_only;  // what is sent is the input as it stands
    bool is_read = false;                           // the output, by others
    if (has_output) dests[ndests++] = output;
    for (uint32_t i = 0; i < step.nsend; ++i) {
      HostRank::End &end = rank_.ends_[send[i].fifo];
      const void *at = is_input ? input : output;
      if ((is_input || has_output) && goes_direct(end, is_input, has_output, at, bytes, line_of(end, chunk).sight)) {
        marks[i] = kDirect;
        end.direct = true;
        is_read |= !is_input;
      } else {
        marks[i] = 0;
        dests[ndests++] = place_of(end, chunk);
      }
    }
    const bool past_caches = has_output && rank_.streams_ && !is_read;

    for (uint32_t i = 0; i < step.nrecv; ++i) {
      if (has_input && i == step.input_at) sources[nsources++] = input;
      HostRank::End &end = rank_.ends_[recv[i].fifo];
      const bool by_address = (tag(end, chunk) & kDirect) != 0;
      sources[nsources++] = by_address ? look(end, share, chunk, dests[0], bytes) : place_of(end, chunk);
    }
    if (has_input && step.input_at >= step.nrecv) sources[nsources++] = input;
    const bool reduces = ndests != 0 && !moves_only;
    if (reduces) {
      finish.streamed = past_caches ? 1 : 0;
      rank_.reduce_(sources, nsources, dests, ndests, chunk.elements, finish);
    }
    for (uint32_t i = 0; i < ndests && moves_only; ++i) {
      if (dests[i] == sources[0]) continue;
      if (i == 0 && past_caches)
        stream(dests[i], sources[0], bytes);
      else
        std::memcpy(dests[i], sources[0], bytes);
    }
    // Last, just before the number: the readers look at this line all the time, and take it away after each store.
    for (uint32_t i = 0; i < step.nsend; ++i)
      tag(rank_.ends_[send[i].fifo], chunk) = (rank_.call_->signature & ~kDirect) | marks[i];
    return reduces;
  }

  void publish(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    Segment &segment = *rank_.context_.segment;
    if (step.nrecv > 0) --receives_;
    if (end_reading()) return;
    // Either who falls asleep sees the number at its second look or we see that it sleeps.
    for (uint32_t i = 0; i < step.nsend; ++i) {
      HostRank::End &end = rank_.ends_[send[i].fifo];
      std::atomic<uint64_t> &number = in_line(chunk) ? line_of(end, chunk).number : *end.tail;
      segment.show(number, end.position + chunk.index + 1);
      for (uint32_t r = 0; r < end.nreaders; ++r) segment.ring(rank_.nccl_rank(end.readers[r]));
    }
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      HostRank::End &end = rank_.ends_[recv[i].fifo];
      segment.show(head_of(end, 0), end.position + chunk.index + 1);
      segment.ring(rank_.nccl_rank(end.source));
    }
  }

  // True when everything that this channel has sent by address has been read.
  bool drained(const ShareRange *shares) {
    for (uint32_t s = 0; s < channel_.nsteps; ++s) {
      const Step &step = channel_.steps[s];
      for (uint32_t i = 0; i < step.nsend; ++i) {
        HostRank::End &end = rank_.ends_[rank_.refs_[step.first_ref + step.nrecv + i].fifo];
        if (!end.direct) continue;
        uint32_t slowest = 0;
        end.seen = least_head(end, &slowest);
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

  static constexpr uint32_t kMostPeers = 256;

 private:
  // From here on the kernel copies between processes; a call of it costs more, and most where readers need the writer's core.
  static constexpr uint64_t kLeastKernel = 16 << 10, kLeastKernelCrowded = 64 << 10;

  // Whether a chunk is sent as its address; then `sight` says where it stands: in the input, if that is what is sent.
  bool goes_direct(const HostRank::End &end, bool is_input, bool is_result, const void *at, uint64_t bytes, Sight &sight) {
    if (bytes < HostRank::kLeastDirect) return false;
    if (is_input && !rank_.keeps_input_) return false;
    sight.address = reinterpret_cast<uint64_t>(at);
    sight.bytes = bytes;
    if (end.reach == Reach::kShared) return true;
    if (end.reach != Reach::kKernel) return false;
    if (bytes < (rank_.cores_are_free() ? kLeastKernel : kLeastKernelCrowded)) return false;
    // The kernel copies, which is all that is done to a result; anything else is reduced. A root would only wait. And the
    // kernel cannot stream, which is worth more where cores are short.
    return is_result && rank_.call_->root < 0 && (rank_.cores_are_free() || !rank_.streams_);
  }

  // Where to read a chunk that was sent as an address; `to`: where the kernel may put it.
  const void *look(HostRank::End &end, const ShareRange &share, const Chunk &chunk, void *to, uint64_t bytes) {
    const Sight &seen = line_of(end, chunk).sight;
    if (end.reach == Reach::kShared) return reinterpret_cast<const void *>(seen.address);
    return fetch(end, share, chunk, to, bytes);
  }

  // Of a slot's tag, in place of the last bit of the call's signature: the slot holds an address.
  static constexpr uint64_t kDirect = 1;

  static std::atomic<uint64_t> &head_of(const HostRank::End &end, uint32_t reader) {
    return *reinterpret_cast<std::atomic<uint64_t> *>(end.heads + reader * kLine);
  }
  static uint64_t least_head(const HostRank::End &end, uint32_t *slowest) {
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < end.nreaders; ++r) {
      const uint64_t head = head_of(end, r).load(std::memory_order_seq_cst);
      if (head >= least) continue;
      least = head;
      *slowest = end.readers[r];
    }
    return least;
  }
  SlotLine &line_of(const HostRank::End &end, const Chunk &chunk) const {
    return end.lines[rank_.slot_of(end.position + chunk.index)];
  }
  // True if the chunk travels in its slot's line; the same at both ends.
  bool in_line(const Chunk &chunk) const { return chunk.elements * rank_.element_bytes_ <= rank_.line_bytes_; }
  uint64_t &tag(const HostRank::End &end, const Chunk &chunk) const {
    return in_line(chunk) ? line_of(end, chunk).tag : end.tags[rank_.slot_of(end.position + chunk.index)];
  }
  // Where a chunk is that travels itself.
  void *place_of(const HostRank::End &end, const Chunk &chunk) const {
    return in_line(chunk) ? line_of(end, chunk).data : slot(end, chunk);
  }
  void *slot(const HostRank::End &end, const Chunk &chunk) const {
    return end.slots + rank_.slot_of(end.position + chunk.index) * rank_.slot_bytes_;
  }
  Progress block(uint32_t plan_rank, const Chunk &chunk) {
    channel_.blocked_on = plan_rank;
    channel_.chunk = chunk.index;
    return Progress::kBlocked;
  }

  // Before another rank's memory is read. Whoever breaks the communicator may free its buffers: it sets `aborted` first,
  // then waits until nobody of its process reads.
  Progress begin_reading() {
    if (rank_.failed_to_read_) return broken();
    if (!direct_) return Progress::kDone;
    Segment &segment = *rank_.context_.segment;
    segment.show(segment.line(rank_.context_.rank).reading, 1u);
    if (!segment.aborted()) return Progress::kDone;
    segment.line(rank_.context_.rank).reading.store(0, std::memory_order_release);
    return broken();
  }

  // True if what was read may not be what the other rank sent: then nothing of it may go on.
  bool end_reading() {
    if (!direct_) return false;
    Segment &segment = *rank_.context_.segment;
    // The look at `aborted` comes after that, and so after all that was read.
    segment.show(segment.line(rank_.context_.rank).reading, 0u);
    rank_.failed_to_read_ |= segment.aborted();
    return rank_.failed_to_read_;
  }

  Progress broken() {
    rank_.fail_all(rank_.context_.segment->abort_status(rank_.context_.rank));
    return Progress::kAborted;
  }

  // What it reads goes to the output and nowhere else, so that chunks that follow in memory, and are there already, come with
  // the same call.
  const void *fetch(HostRank::End &end, const ShareRange &share, const Chunk &chunk, void *to, uint64_t bytes) {
    if (end.position + chunk.index < end.fetched) return to;
    const uint64_t from = line_of(end, chunk).sight.address, written = end.tail->load(std::memory_order_acquire);
    Chunk next = chunk;
    while (++next.index < share.nchunks && end.position + next.index < written) {
      const Sight &sight = line_of(end, next).sight;
      const bool follows = (tag(end, next) & kDirect) != 0 && sight.address == from + bytes;
      if (!follows) break;
      bytes += sight.bytes;
    }
    end.fetched = end.position + next.index;
    const uint32_t peer = rank_.nccl_rank(end.source);
    const Status copied = rank_.neighbours_.read(peer, from, to, bytes);
    if (!copied.ok()) {
      rank_.context_.segment->abort(copied, rank_.context_.rank);
      rank_.failed_to_read_ = true;
    }
    return to;
  }

  HostRank &rank_;
  HostRank::ChannelState &channel_;
  uint32_t receives_;
  bool direct_ = false;  // the step reads another rank's memory
};

}  // namespace collc
