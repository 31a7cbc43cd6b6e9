// Host code: the tables of one allocation, made ready for the device.
//
// Every FIFO end gets a number within its rank, references are rewritten to those numbers (a send to a FIFO with several
// readers becomes one reference per reader), and every rank's arena is laid out. All ranks compute all layouts alike, so
// only the arenas' addresses have to be exchanged.
#pragma once
#include <string>
#include <vector>

#include "collc/cuda/layout.h"

namespace collc::cuda {

// One FIFO end and where its memory is. `slots` and `tail` are offsets in the reader's arena, `head` in the writer's.
struct EndPlace {
  uint32_t fifo;
  uint32_t reader;   // which of the FIFO's readers
  uint32_t peer;     // the rank at the other end
  bool writes;
  size_t slots;
  size_t tail;
  size_t head;
};

struct DevicePlan {
  uint32_t nranks = 0;
  uint32_t slots = 0;
  uint32_t slot_bytes = 0;
  uint32_t max_channels = 0;
  uint32_t max_shares = 0;
  std::vector<Program> programs;
  std::vector<Share> shares;
  std::vector<RankChannel> rank_channels;
  std::vector<Step> steps;
  std::vector<FifoRef> refs;
  std::vector<std::vector<EndPlace>> ends;  // per rank
  std::vector<size_t> arena_bytes;          // per rank
};

namespace detail {

// Numbers the ends and lays out the arenas: flags first, then slots.
class ArenaBuilder {
 public:
  ArenaBuilder(const Tables &tables, const Allocation &allocation, DevicePlan &plan) : plan_(plan) {
    plan_.ends.resize(allocation.nranks);
    plan_.arena_bytes.assign(allocation.nranks, 0);
    numbers_.resize(allocation.nfifos);
    for (uint32_t f = 0; f < allocation.nfifos; ++f) {
      const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
      for (uint32_t r = 0; r < fifo.nreaders; ++r) add(f, fifo.src, r, tables.fifo_readers[fifo.first_reader + r]);
    }
    for (size_t rank = 0; rank < plan_.ends.size(); ++rank)
      for (EndPlace &end : plan_.ends[rank])
        if (!end.writes) end.slots = take(rank, static_cast<size_t>(plan_.slots) * plan_.slot_bytes);
    for (auto &ends : plan_.ends)
      for (EndPlace &end : ends)
        if (end.writes) end.slots = plan_.ends[end.peer][numbers_[end.fifo][end.reader].read_end].slots;
  }

  struct Numbers {
    uint32_t write_end;  // within the writer
    uint32_t read_end;   // within that reader
  };
  const std::vector<Numbers> &of(uint32_t fifo) const { return numbers_[fifo]; }

 private:
  size_t take(size_t rank, size_t bytes) {
    const size_t at = plan_.arena_bytes[rank];
    plan_.arena_bytes[rank] = at + (bytes + kFlagBytes - 1) / kFlagBytes * kFlagBytes;
    return at;
  }
  void add(uint32_t fifo, uint32_t src, uint32_t reader, uint32_t dst) {
    const size_t head = take(src, kFlagBytes), tail = take(dst, kFlagBytes);
    numbers_[fifo].push_back({static_cast<uint32_t>(plan_.ends[src].size()), static_cast<uint32_t>(plan_.ends[dst].size())});
    plan_.ends[src].push_back({fifo, reader, dst, true, 0, tail, head});
    plan_.ends[dst].push_back({fifo, reader, src, false, 0, tail, head});
  }

  DevicePlan &plan_;
  std::vector<std::vector<Numbers>> numbers_;  // per FIFO and reader
};

inline void add_step(const Tables &tables, const ArenaBuilder &arenas, Step step, DevicePlan &plan) {
  const FifoRef *refs = tables.refs + step.first_ref;
  const uint32_t nrecv = step.nrecv, nsend = step.nsend;
  step.first_ref = static_cast<uint32_t>(plan.refs.size());
  for (uint32_t i = 0; i < nrecv; ++i) plan.refs.push_back({arenas.of(refs[i].fifo)[refs[i].reader].read_end, refs[i].reader});
  for (uint32_t i = nrecv; i < nrecv + nsend; ++i)
    for (uint32_t r = 0; r < arenas.of(refs[i].fifo).size(); ++r)
      plan.refs.push_back({arenas.of(refs[i].fifo)[r].write_end, r});
  step.nsend = static_cast<uint16_t>(plan.refs.size() - step.first_ref - nrecv);
  plan.steps.push_back(step);
}

// A block belongs to a rank (alltoall: to a pair); in the caller's buffers it lies where that rank's NCCL number says.
inline uint32_t place_of_block(const Program &program, uint32_t block, const std::vector<uint32_t> &nccl_rank) {
  const uint32_t n = static_cast<uint32_t>(nccl_rank.size());
  switch (program.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return block < n ? nccl_rank[block] : block;
    case Collective::kAllToAll:
      return n == 0 ? block : nccl_rank[block / n] * n + nccl_rank[block % n];
    default:
      return block;
  }
}

inline void add_program(const Tables &tables, const ArenaBuilder &arenas, Program program,
                        const std::vector<uint32_t> &nccl_rank, DevicePlan &plan) {
  const Share *shares = tables.shares + program.first_share;
  const RankChannel *places = tables.rank_channels + program.first_rank_channel;
  program.first_share = static_cast<uint32_t>(plan.shares.size());
  program.first_rank_channel = static_cast<uint32_t>(plan.rank_channels.size());
  for (uint32_t s = 0; s < program.nshares; ++s) {
    plan.shares.push_back(shares[s]);
    plan.shares.back().block = place_of_block(program, shares[s].block, nccl_rank);
  }
  for (uint32_t i = 0; i < plan.nranks * program.nchannels; ++i) {
    plan.rank_channels.push_back({static_cast<uint32_t>(plan.steps.size()), places[i].nsteps});
    for (uint32_t s = 0; s < places[i].nsteps; ++s) add_step(tables, arenas, tables.steps[places[i].first_step + s], plan);
  }
  if (program.nchannels > plan.max_channels) plan.max_channels = program.nchannels;
  if (program.nshares > plan.max_shares) plan.max_shares = program.nshares;
  plan.programs.push_back(program);
}

}  // namespace detail

// Returns "" or what the device cannot run. `nccl_rank` says by rank of the plan which NCCL rank plays it; empty: the same.
inline std::string make_device_plan(const Tables &tables, const Allocation &allocation, DevicePlan &plan,
                                    const std::vector<uint32_t> &nccl_rank = {}) {
  plan.nranks = allocation.nranks;
  plan.slots = allocation.slots;
  plan.slot_bytes = allocation.slot_bytes;
  const detail::ArenaBuilder arenas(tables, allocation, plan);
  for (uint32_t p = 0; p < allocation.nprograms; ++p)
    detail::add_program(tables, arenas, tables.programs[allocation.first_program + p], nccl_rank, plan);
  for (const Step &step : plan.steps)
    if (step.nrecv + step.nsend > kMaxPeers) return "a step of this plan has more than " + std::to_string(kMaxPeers) + " peers";
  for (const Program &program : plan.programs)
    if (program.protocol != 0) return "this plan asks for a protocol that the kernels do not have";
  return "";
}

}  // namespace collc::cuda
