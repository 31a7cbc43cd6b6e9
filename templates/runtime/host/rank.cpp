#include "host/rank.h"

#include <cstring>

#include "plan.h"

namespace collc {
namespace {

uint64_t lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Where a block lies in the caller's buffers, in elements; NCCL's conventions. `block` counts ranks of the plan.
void place_block(const Placement &placement, Collective collective, uint32_t nranks, uint32_t block, uint64_t count,
                 ShareRange *range) {
  const auto nccl = [&](uint32_t plan_rank) { return uint64_t{placement.nccl_rank[plan_rank]}; };
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      range->out_base = nccl(block) * count;
      break;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      range->in_base = nccl(block) * count;
      break;
    case Collective::kAllToAll:  // block source * nranks + destination
      range->in_base = nccl(block % nranks) * count;
      range->out_base = nccl(block / nranks) * count;
      break;
    default:
      break;
  }
}

}  // namespace

FifoLayout::FifoLayout(const Tables &tables, const Allocation &allocation) {
  const uint64_t source_line = lines((1 + uint64_t{allocation.slots}) * sizeof(uint64_t));
  uint64_t at = 0;
  for (uint32_t f = 0; f < allocation.nfifos; ++f) {
    const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
    FifoPlace place = {};
    place.tail = at;
    place.heads = at + source_line;
    at = place.heads + fifo.nreaders * kLine;
    places_.push_back(place);
  }
  at = (at + kPage - 1) / kPage * kPage;
  for (FifoPlace &place : places_) {
    place.slots = at;
    at += uint64_t{allocation.slots} * allocation.slot_bytes;
  }
  end_ = at;
}

// The host's verbs: a wait that would block returns, so that one thread can run many channels and ranks.
class HostVerbs {
 public:
  HostVerbs(HostRank &rank, HostRank::ChannelState &channel) : rank_(rank), channel_(channel) {}

  Progress wait(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      HostRank::End &end = rank_.ends_[recv[i].fifo];
      const uint64_t need = end.position + chunk.index + 1;
      if (end.seen < need) {
        end.seen = end.tail->load(std::memory_order_seq_cst);
        if (end.seen < need) return block(end.source, chunk);
      }
      if (chunk.index == 0 && end.signatures[(need - 1) % rank_.slots_] != rank_.call_.signature) {
        rank_.fail_all(rank_.differing_call(end.source));
        return Progress::kAborted;
      }
    }
    for (uint32_t i = 0; i < step.nsend; ++i) {
      HostRank::End &end = rank_.ends_[send[i].fifo];
      const uint64_t passed = end.position + chunk.index;
      if (passed < end.seen + rank_.slots_) continue;
      end.seen = UINT64_MAX;
      uint32_t slowest = 0;
      for (uint32_t r = 0; r < end.nreaders; ++r) {
        const uint64_t head = head_of(end, r).load(std::memory_order_seq_cst);
        if (head < end.seen) {
          end.seen = head;
          slowest = end.readers[r];
        }
      }
      if (passed >= end.seen + rank_.slots_) return block(slowest, chunk);
    }
    return Progress::kDone;
  }

  void move(const Step &step, const FifoRef *recv, const FifoRef *send, const ShareRange &share, const Chunk &chunk) {
    const uint64_t size = rank_.element_bytes_;
    const void *sources[kMostPeers + 1];
    void *dests[kMostPeers + 1];
    uint32_t nsources = 0, ndests = 0;
    if ((step.flags & kInput) != 0)
      sources[nsources++] = static_cast<const char *>(rank_.call_.input) + (share.in_base + chunk.begin) * size;
    for (uint32_t i = 0; i < step.nrecv; ++i) sources[nsources++] = slot(rank_.ends_[recv[i].fifo], chunk);
    if ((step.flags & kOutput) != 0)
      dests[ndests++] = static_cast<char *>(rank_.call_.output) + (share.out_base + chunk.begin) * size;
    for (uint32_t i = 0; i < step.nsend; ++i) dests[ndests++] = slot(rank_.ends_[send[i].fifo], chunk);

    Finish finish = rank_.finish_;
    if ((step.flags & kFinal) == 0) finish.divisor = 1;
    if ((step.flags & kInput) == 0) finish.scale_first = false;
    if (nsources > 1 || finish.divisor != 1 || finish.scale_first) {
      rank_.reduce_(sources, nsources, dests, ndests, chunk.elements, finish);
      return;
    }
    for (uint32_t i = 0; i < ndests; ++i)
      if (dests[i] != sources[0]) std::memcpy(dests[i], sources[0], chunk.elements * size);
  }

  void publish(const Step &step, const FifoRef *recv, const FifoRef *send, const Chunk &chunk) {
    Segment &segment = *rank_.context_.segment;
    // Sequentially consistent, together with the sleeper's store and second look: either it sees the counter or we see
    // that it sleeps.
    for (uint32_t i = 0; i < step.nsend; ++i) {
      HostRank::End &end = rank_.ends_[send[i].fifo];
      const uint64_t passed = end.position + chunk.index;
      end.signatures[passed % rank_.slots_] = rank_.call_.signature;
      end.tail->store(passed + 1, std::memory_order_seq_cst);
      for (uint32_t r = 0; r < end.nreaders; ++r) segment.ring(rank_.nccl_rank(end.readers[r]));
    }
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      HostRank::End &end = rank_.ends_[recv[i].fifo];
      head_of(end, 0).store(end.position + chunk.index + 1, std::memory_order_seq_cst);
      segment.ring(rank_.nccl_rank(end.source));
    }
  }

  static constexpr uint32_t kMostPeers = 256;

 private:
  static std::atomic<uint64_t> &head_of(const HostRank::End &end, uint32_t reader) {
    return *reinterpret_cast<std::atomic<uint64_t> *>(end.heads + reader * kLine);
  }
  void *slot(const HostRank::End &end, const Chunk &chunk) const {
    return end.slots + (end.position + chunk.index) % rank_.slots_ * rank_.slot_bytes_;
  }
  Progress block(uint32_t plan_rank, const Chunk &chunk) {
    channel_.blocked_on = plan_rank;
    channel_.chunk = chunk.index;
    return Progress::kBlocked;
  }

  HostRank &rank_;
  HostRank::ChannelState &channel_;
};

TransferLayout host_layout(const Tables &tables, const Placement &placement) {
  const uint64_t fifos = placement.allocation != nullptr ? FifoLayout(tables, *placement.allocation).end() : 0;
  return TransferLayout(static_cast<uint32_t>(placement.plan_rank.size()), fifos);
}

HostRank::HostRank(const RankContext &context)
    : context_(context),
      plan_rank_(context.placement.plan_rank[context.rank]),
      transfers_(*context.segment, host_layout(*context.tables, context.placement), context.rank) {
  context_.exchange = nullptr;  // only valid while the communicator is made
  if (context_.placement.allocation == nullptr) return;
  const Tables &tables = *context_.tables;
  const Allocation &allocation = *context_.placement.allocation;
  slots_ = allocation.slots;
  slot_bytes_ = allocation.slot_bytes;
  refs_ = tables.refs;
  const FifoLayout layout(tables, allocation);
  char *memory = context_.segment->memory();
  ends_.resize(allocation.nfifos);
  for (uint32_t f = 0; f < allocation.nfifos; ++f) {
    const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
    End &end = ends_[f];
    end.tail = reinterpret_cast<std::atomic<uint64_t> *>(memory + layout[f].tail);
    end.signatures = reinterpret_cast<uint64_t *>(memory + layout[f].tail) + 1;
    end.slots = memory + layout[f].slots;
    end.heads = memory + layout[f].heads;
    end.readers = tables.fifo_readers + fifo.first_reader;
    end.nreaders = fifo.nreaders;
    end.source = fifo.src;
    for (uint32_t r = 0; r < fifo.nreaders; ++r)
      if (end.readers[r] == plan_rank_) end.heads += r * kLine;
  }
}

void HostRank::place_shares(const Call &call, uint32_t size) {
  const Program &program = *call.program;
  if (shares_program_ == &program && shares_count_ == call.count && shares_element_ == size) return;
  shares_.resize(program.nshares);
  for (uint32_t s = 0; s < program.nshares; ++s) {
    const Share &share = context_.tables->shares[program.first_share + s];
    shares_[s] = cut_share(share, call.count, size, program.chunk_bytes);
    place_block(context_.placement, program.collective, context_.nranks, share.block, call.count, &shares_[s]);
  }
  shares_program_ = &program;
  shares_count_ = call.count;
  shares_element_ = size;
}

void HostRank::begin(const Call &call) {
  call_ = call;
  element_bytes_ = static_cast<uint32_t>(element_bytes(call.type));
  reduce_ = reduce_function(call.type, call.op.kind);
  finish_.divisor = call.op.average ? context_.nranks : 1;
  finish_.scale_first = call.op.scaled;
  std::memcpy(finish_.scale, call.op.scale, sizeof finish_.scale);
  if (call.program == nullptr) {
    remaining_ = 0;
    copy_alone(call);
    return;
  }
  // Read in the other order by `diagnose`: whoever sees the new signature sees that the old number is gone.
  CallRecord &record = context_.segment->line(context_.rank).call;
  record.number.store(0, std::memory_order_relaxed);
  record.count.store(call.count, std::memory_order_relaxed);
  record.collective.store(static_cast<uint32_t>(call.collective), std::memory_order_relaxed);
  record.type.store(static_cast<uint32_t>(call.type), std::memory_order_relaxed);
  record.op.store(static_cast<uint32_t>(call.op.average ? ncclAvg : call.op.kind), std::memory_order_relaxed);
  record.root.store(call.root, std::memory_order_relaxed);
  record.signature.store(call.signature, std::memory_order_release);
  record.number.store(call.number, std::memory_order_release);

  place_shares(call, element_bytes_);
  const Program &program = *call.program;
  channels_.resize(program.nchannels);
  remaining_ = 0;
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place =
        context_.tables->rank_channels[program.first_rank_channel + plan_rank_ * program.nchannels + c];
    ChannelState &channel = channels_[c];
    channel = {};
    channel.steps = context_.tables->steps + place.first_step;
    channel.nsteps = place.nsteps;
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const uint64_t chunks = shares_[channel.steps[s].share].nchunks;
      if (chunks != 0) channel.iterations = std::max(channel.iterations, chunks + channel.steps[s].lag);
    }
    channel.done = channel.iterations == 0;
    if (!channel.done) ++remaining_;
  }
}

void HostRank::copy_alone(const Call &call) {
  void *output = call.output;
  Finish finish = finish_;
  finish.divisor = 1;  // the average of one rank is its input; a scaled sum is not
  if (finish.scale_first)
    reduce_(&call.input, 1, &output, 1, call.count, finish);
  else if (call.output != call.input)
    std::memmove(call.output, call.input, call.count * element_bytes_);
}

bool HostRank::advance() {
  bool moved = false;
  for (ChannelState &channel : channels_) {
    if (channel.done) continue;
    const Cursor before = channel.at;
    HostVerbs verbs(*this, channel);
    const Progress progress =
        run_channel(verbs, channel.steps, channel.nsteps, refs_, shares_.data(), channel.iterations, channel.at);
    if (progress == Progress::kAborted) return true;
    if (progress == Progress::kDone) finish_channel(channel);
    moved |= progress == Progress::kDone || channel.at.iteration != before.iteration || channel.at.step != before.step;
  }
  Status failed;
  moved |= transfers_.advance(&failed);
  if (!failed.ok()) fail_all(failed);
  return moved;
}

void HostRank::finish_channel(ChannelState &channel) {
  channel.done = true;
  --remaining_;
  for (uint32_t s = 0; s < channel.nsteps; ++s) {
    const Step &step = channel.steps[s];
    for (uint32_t i = 0; i < step.nrecv + step.nsend; ++i)
      ends_[refs_[step.first_ref + i].fifo].position += shares_[step.share].nchunks;
  }
}

void HostRank::fail_all(const Status &status) {
  context_.segment->abort(status, context_.rank);
  if (failure_.ok()) failure_ = status;
  remaining_ = 0;
  for (ChannelState &channel : channels_) channel.done = true;
  transfers_.fail(failure_);
}

Status HostRank::differing_call(uint32_t plan_rank) const {
  const auto describe = [](uint32_t collective, uint64_t count, uint32_t type, uint32_t op, int root) {
    std::string text = format("%s of %llu elements, type %u, op %u", name_of(static_cast<Collective>(collective)),
                              static_cast<unsigned long long>(count), type, op);
    return root < 0 ? text : text + format(", root %d", root);
  };
  const uint32_t peer = nccl_rank(plan_rank);
  const CallRecord &theirs = context_.segment->line(peer).call;
  const uint64_t number = theirs.number.load(std::memory_order_acquire);
  const std::string mine = describe(static_cast<uint32_t>(call_.collective), call_.count, static_cast<uint32_t>(call_.type),
                                    static_cast<uint32_t>(call_.op.average ? ncclAvg : call_.op.kind), call_.root);
  const std::string other = describe(theirs.collective.load(std::memory_order_relaxed), theirs.count.load(std::memory_order_relaxed),
                                     theirs.type.load(std::memory_order_relaxed), theirs.op.load(std::memory_order_relaxed),
                                     theirs.root.load(std::memory_order_relaxed));
  return fail(ncclInvalidUsage, "calls differ: call %llu of rank %u is %s; call %llu of rank %u is %s",
              static_cast<unsigned long long>(call_.number), context_.rank, mine.c_str(),
              static_cast<unsigned long long>(number), peer, other.c_str());
}

std::string HostRank::waiting_for(const ChannelState &channel) const {
  return format("rank %u waits for rank %u in %s (channel %u, step %u, chunk %llu)", context_.rank,
                nccl_rank(channel.blocked_on), name_of(call_.collective), static_cast<uint32_t>(&channel - channels_.data()),
                channel.at.step, static_cast<unsigned long long>(channel.chunk));
}

std::string HostRank::waiting_for_any() const {
  for (const ChannelState &channel : channels_)
    if (!channel.done) return waiting_for(channel);
  return transfers_.describe();
}

bool HostRank::waits_for(uint32_t peer) const {
  for (const ChannelState &channel : channels_)
    if (!channel.done && nccl_rank(channel.blocked_on) == peer) return true;
  return transfers_.waits_for(peer);
}

void HostRank::diagnose(int64_t waited_us) {
  if (idle()) return;
  Segment &memory = *context_.segment;
  if (memory.aborted()) return fail_all(memory.abort_status(context_.rank));
  if (context_.stopped()) return fail_all(fail(ncclInvalidUsage, "the communicator was aborted"));
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (peer == context_.rank) continue;
    const bool left =
        memory.line(peer).state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::kLeft);
    // A collective needs everyone in the end, a transfer only its peer.
    const bool needed = !done() || transfers_.waits_for(peer);
    if (needed && !memory.alive(peer)) {
      // What it published before its end counts; only who still waits then is lost.
      if (advance()) return;
      return fail_all(fail(ncclRemoteError, "rank %u has died; %s", peer, waiting_for_any().c_str()));
    }
    if (left && waits_for(peer)) {
      if (advance()) return;
      return fail_all(fail(ncclRemoteError, "rank %u has destroyed its communicator; %s", peer, waiting_for_any().c_str()));
    }
    if (done()) continue;
    const CallRecord &theirs = memory.line(peer).call;
    const uint64_t number = theirs.number.load(std::memory_order_acquire);
    const uint64_t signature = theirs.signature.load(std::memory_order_acquire);
    if (number == call_.number && signature != call_.signature && theirs.number.load(std::memory_order_relaxed) == number)
      return fail_all(differing_call(context_.placement.plan_rank[peer]));
  }
  if (context_.timeout > 0 && static_cast<double>(waited_us) > context_.timeout * 1e6)
    fail_all(fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s %s", static_cast<double>(waited_us) / 1e6,
                  waiting_for_any().c_str()));
}

}  // namespace collc
