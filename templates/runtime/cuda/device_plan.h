// The tables of one allocation, made ready for the device.
//
// Every FIFO end gets a number within its rank, references are rewritten to those numbers (a send to a FIFO with several
// readers becomes one reference per reader), and every rank's arena is laid out. All ranks compute all layouts alike, so
// only the arenas' addresses have to be exchanged.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collc/cuda/layout.h"
#include "collc/step_program.h"
#include "cuda/elsewhere.h"
#include "cuda/end_place.h"
#include "cuda/lane_plan.h"
#include "cuda/launch_rows.h"
#include "cuda/pinned_plan.h"
#include "cuda/plan_settings.h"
#include "cuda/slot_sizes.h"
#include "cuda/staged.h"
#include "cuda/team_plan.h"
#include "plan/blocks.h"

namespace collc::cuda {

// Calls up to this size in bytes (NCCL's count times the element size) use LL and LL128 if the tables leave the choice open. A
// hop of Simple takes some 5 us longer than a hop of LL and 4 us longer than a hop of LL128, with 1/2 and 15/16 of the
// bandwidth: at 200 GB/s and 4 hops LL pays up to 0.8 MB against LL128 and 4 MB against Simple. The limits are lower, because
// few channels do not reach that speed over LL.
constexpr uint64_t kLLMost = 128 << 10, kLL128Most = 8 << 20, kLLMostWithoutLL128 = 512 << 10;

struct DevicePlan {
  uint32_t nranks = 0;
  uint32_t slots = 0;                       // of a FIFO, at most
  uint32_t half_bytes[kProtocols] = {};     // over several servers: of a chunk in a slot, for all FIFOs alike
  uint32_t max_channels = 0;
  uint32_t max_shared = 0;                  // bytes of shared memory that a block needs
  bool by_size = false;                     // the tables leave protocols open
  bool has_ll128 = false;                   // all devices have its kernels, all links carry its lines
  Overrides overrides;
  std::vector<uint32_t> own_protocols;      // of the tables' programs
  std::vector<bool> cut;                    // into classes of links: of the same programs
  std::vector<bool> wired;                  // with a class that goes over NICs: only over Simple
  uint32_t wired_bytes = 0;                 // bytes of a slot of such a FIFO
  std::vector<bool> in_switch;              // with steps that a switch adds up or copies for: only over Simple
  std::vector<bool> lined;                  // whose FIFOs between servers all have halves for LL
  std::vector<Program> programs;            // row p * kProtocols + q: program p of the tables over protocol q
  std::vector<CachedTables> cached;         // that a block of each of these has at most
  std::vector<uint32_t> channels_at;        // of their channels in a rank's tables (rank_tables.h)
  uint32_t shares_at = table_units(sizeof(RankState));  // in the same, behind all channels
  std::vector<DeviceShare> shares;
  std::vector<ChannelPlan> channels;        // row first_rank_channel + rank * nchannels + channel of a program
  std::vector<Step> steps;
  std::vector<FifoRef> refs;
  std::vector<std::vector<EndPlace>> ends;  // per rank
  std::vector<size_t> arena_bytes;          // per rank
  size_t team_bytes = 0;                    // of every rank's memory behind the multicast address
  LanePlan lanes;                           // of transfers
  std::vector<size_t> lanes_at;             // per rank, in its arena
  PinnedPlan pinned;                        // of the pairs that do not reach each other's GPU memory, and of staged FIFOs
  Elsewhere elsewhere;                      // proxies know only Simple and LL, so no other protocol runs then

  // Return true if blocks of row `row` of `programs` copy their tables, and the bytes of their shared memory.
  bool caches_row(uint32_t row) const { return shared_bytes(programs[row].nshares, cached[row]) <= kMostCached; }
  uint32_t shared_bytes_of(uint32_t row) const {
    return caches_row(row) ? shared_bytes(programs[row].nshares, cached[row]) : shared_bytes(programs[row].nshares);
  }

  // Returns the protocol of a call of `bytes` of the tables' program `program`.
  uint32_t protocol_of(uint32_t program, uint64_t bytes) const {
    if (in_switch[program] || wired[program]) return kSimple;
    if (elsewhere.any()) {
      const uint32_t wanted = overrides.protocol >= 0 ? static_cast<uint32_t>(overrides.protocol) : own_protocols[program];
      return wanted == kLL && lined[program] ? kLL : kSimple;
    }
    // LL128's lines are torn on their way through host memory.
    if (cut[program]) return overrides.protocol == static_cast<int32_t>(kLL) ? kLL : kSimple;
    if (overrides.protocol >= 0) return static_cast<uint32_t>(overrides.protocol);
    if (!by_size) return own_protocol(program);
    if (bytes <= (has_ll128 ? kLLMost : kLLMostWithoutLL128)) return kLL;
    return has_ll128 && bytes <= kLL128Most ? kLL128 : kSimple;
  }
  // Returns true if some call of a program runs over a protocol.
  bool runs_over(uint32_t program, uint32_t protocol) const {
    if (cut[program] || in_switch[program] || elsewhere.any()) return protocol_of(program, 0) == protocol;
    if (overrides.protocol >= 0) return static_cast<uint32_t>(overrides.protocol) == protocol;
    if (!by_size) return own_protocol(program) == protocol;
    return protocol != kLL128 || has_ll128;
  }
  // Where a link does not carry LL128, its programs run over Simple.
  uint32_t own_protocol(uint32_t program) const {
    const uint32_t own = own_protocols[program];
    return own == kLL128 && !has_ll128 ? kSimple : own;
  }

  // Returns true if a rank has transfers with others through arenas.
  bool has_lanes(uint32_t rank) const {
    for (uint32_t peer = 0; peer < nranks; ++peer)
      if (peer != rank && !pinned.joins(rank, peer) && !elsewhere.apart(rank, peer)) return true;
    return false;
  }

  // The ends of `rank` for all protocols, kProtocols * ends[rank].size() of them. arena(peer) is the arena of a rank,
  // region(peer) the pinned memory of the pair, `halves` the halves of this server, all as addresses for its device. `team` has
  // the multicast address, and its memory behind it.
  template <class Arena, class Region, class Halves = NoHalves>
  void make_ends(uint32_t rank, Arena arena, Region region, FifoEnd *made, const Halves &halves = {},
                 const TeamAddresses &team = {}) const {
    const std::vector<EndPlace> &places = ends[rank];
    const uint64_t mine = arena(rank);
    for (uint32_t protocol = 0; protocol < kProtocols; ++protocol) {
      for (size_t i = 0; i < places.size(); ++i) {
        const EndPlace &place = places[i];
        FifoEnd &end = made[protocol * places.size() + i];
        end = {};
        const EndPlace::Memory &memory = place.memory[protocol];
        if (!memory.used) continue;
        end.position = place.turn;
        end.turns = place.turns;
        end.nslots = place.nslots;
        end.slot_bytes = memory.slot_bytes;
        if (place.leaves) {
          take_half(halves.fifo(place, protocol), place.writes, &end);
          continue;
        }
        const bool is_pinned = place.staged || pinned.joins(rank, place.peer);
        const uint64_t theirs = is_pinned ? region(place.peer) : arena(place.peer);
        const uint64_t ours = is_pinned ? theirs : mine;
        const uint64_t reader = place.writes ? theirs : ours, writer = place.writes ? ours : theirs;
        auto *head = reinterpret_cast<uint64_t *>(writer + memory.head);
        auto *tail = protocol == kSimple ? reinterpret_cast<uint64_t *>(reader + memory.tail) : nullptr;
        const uint64_t slots = team.base(place.team, reader);
        end.slots = reinterpret_cast<char *>(slots + memory.slots);
        end.wait_on = place.writes ? head : tail;
        end.publish_to = place.writes ? tail : head;
      }
    }
  }
};

namespace detail {

// Numbers the ends and lays out the arenas: flags first, then slots.
class ArenaBuilder {
 public:
  ArenaBuilder(const Tables &tables, const Allocation &allocation, const ClassFifos &classes, DevicePlan &plan)
      : plan_(plan), classes_(classes) {
    plan_.ends.resize(allocation.nranks);
    plan_.arena_bytes.assign(allocation.nranks, 0);
    numbers_.resize(allocation.nfifos);
    for (uint32_t f = 0; f < allocation.nfifos; ++f) {
      const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
      for (uint32_t r = 0; r < fifo.nreaders; ++r) add(f, fifo, r, tables.fifo_readers[fifo.first_reader + r]);
    }
  }

  // A program needs a FIFO over a protocol, with slots of `slot_bytes`.
  void use(uint32_t fifo, uint32_t protocol, uint32_t slot_bytes) {
    for (const Numbers &numbers : numbers_[first_of(fifo)]) {
      EndPlace &writer = plan_.ends[numbers.src][numbers.write_end];
      if (classes_.wired[fifo]) slot_bytes = plan_.wired_bytes;
      EndPlace::Memory &ours = writer.memory[protocol], &theirs = other(writer).memory[protocol];
      ours.used = theirs.used = true;
      ours.slot_bytes = theirs.slot_bytes = std::max(ours.slot_bytes, slot_bytes);
    }
  }

  // Finds room for everything; once it is known which protocols run and how large slots are.
  void lay_out() {
    for (uint32_t protocol = 0; protocol < kProtocols; ++protocol)
      for (uint32_t rank = 0; rank < plan_.nranks; ++rank)
        for (EndPlace &end : plan_.ends[rank]) {
          EndPlace::Memory &memory = end.memory[protocol];
          if (!memory.used || end.leaves) continue;
          if (end.writes)
            memory.head = other(end).memory[protocol].head = take(rank, end, kFlagBytes);
          else if (protocol == kSimple)
            memory.tail = other(end).memory[protocol].tail = take(rank, end, kFlagBytes);
        }
    lay_out_team();
    for (uint32_t protocol = 0; protocol < kProtocols; ++protocol)
      for (uint32_t rank = 0; rank < plan_.nranks; ++rank)
        for (EndPlace &end : plan_.ends[rank])
          if (!end.writes && end.memory[protocol].used && !end.leaves && !end.team.is_in)
            end.memory[protocol].slots = other(end).memory[protocol].slots =
                take(rank, end, static_cast<size_t>(end.nslots) * end.memory[protocol].slot_bytes);
    for (std::vector<EndPlace> &ends : plan_.ends)
      for (EndPlace &end : ends) {
        if (end.turn == 0) continue;
        const Numbers &numbers = numbers_[end.fifo - end.turn][end.reader];
        const EndPlace &first = ends[end.writes ? numbers.write_end : numbers.read_end];
        std::copy(std::begin(first.memory), std::end(first.memory), std::begin(end.memory));
      }
  }

  // The FIFOs at refs[0 .. count) are one multicast address for the end that writes or reads them all.
  void join(const FifoRef *refs, uint32_t count, bool writes) {
    for (uint32_t i = 0; i < count; ++i)
      for (const Numbers &numbers : numbers_[refs[i].fifo]) {
        EndPlace &writer = plan_.ends[numbers.src][numbers.write_end];
        EndPlace &reader = other(writer);
        writer.team = {true, writes, refs[0].fifo};
        reader.team = {true, !writes, refs[0].fifo};
      }
  }

  struct Numbers {
    uint32_t src;
    uint32_t write_end;  // within the writer
    uint32_t read_end;   // within that reader
  };
  const std::vector<Numbers> &of(uint32_t fifo) const { return numbers_[fifo]; }

 private:
  // A place for the slots of each group, at the same offset in all ranks' memory.
  void lay_out_team() {
    std::map<uint32_t, size_t> places;
    for (std::vector<EndPlace> &ends : plan_.ends)
      for (EndPlace &end : ends) {
        EndPlace::Memory &memory = end.memory[kSimple];
        if (!end.team.is_in || !memory.used) continue;
        const auto [place, is_new] = places.emplace(end.team.group, plan_.team_bytes);
        if (is_new) plan_.team_bytes += team_slots(static_cast<size_t>(end.nslots) * memory.slot_bytes);
        memory.slots = place->second;
      }
  }
  EndPlace &other(const EndPlace &end) {
    const Numbers &numbers = numbers_[end.fifo][end.reader];
    return plan_.ends[end.peer][end.writes ? numbers.read_end : numbers.write_end];
  }
  uint32_t first_of(uint32_t fifo) const {
    const Numbers &numbers = numbers_[fifo][0];
    return fifo - plan_.ends[numbers.src][numbers.write_end].turn;
  }
  size_t take(uint32_t rank, const EndPlace &end, size_t bytes) {
    const bool is_pinned = end.staged || plan_.pinned.joins(rank, end.peer);
    size_t &used = is_pinned ? plan_.pinned.fifo_bytes(rank, end.peer) : plan_.arena_bytes[rank];
    const size_t at = used;
    used = at + (bytes + kFlagBytes - 1) / kFlagBytes * kFlagBytes;
    return at;
  }
  void add(uint32_t number, const Fifo &fifo, uint32_t reader, uint32_t dst) {
    const uint32_t src = fifo.src;
    const auto write_end = static_cast<uint32_t>(plan_.ends[src].size());
    // A FIFO through a switch may lead to its own source.
    const auto read_end = static_cast<uint32_t>(plan_.ends[dst].size() + (src == dst ? 1 : 0));
    numbers_[number].push_back({src, write_end, read_end});
    const bool staged = classes_.staged[number], wired = classes_.wired[number];
    const bool leaves = plan_.elsewhere.apart(src, dst) || wired;
    const uint32_t nslots = plan_.elsewhere.any() || wired ? plan_.slots : fifo.slots;
    plan_.ends[src].push_back({number, reader, dst, nslots, true, staged, leaves, fifo.turn, fifo.turns, {}, {}});
    plan_.ends[dst].push_back({number, reader, src, nslots, false, staged, leaves, fifo.turn, fifo.turns, {}, {}});
  }

  DevicePlan &plan_;
  const ClassFifos &classes_;
  std::vector<std::vector<Numbers>> numbers_;  // per FIFO and reader
};

// `first_ref`: of its channel.
inline void add_step(const Tables &tables, const ArenaBuilder &arenas, Step step, uint32_t first_ref, DevicePlan &plan) {
  const FifoRef *refs = tables.refs + step.first_ref;
  const uint32_t nrecv = step.nrecv, nsend = step.nsend;
  const auto own_ref = static_cast<uint32_t>(plan.refs.size());
  step.first_ref = own_ref - first_ref;
  for (uint32_t i = 0; i < nrecv; ++i) plan.refs.push_back({arenas.of(refs[i].fifo)[refs[i].reader].read_end, refs[i].reader});
  for (uint32_t i = nrecv; i < nrecv + nsend; ++i)
    for (uint32_t r = 0; r < arenas.of(refs[i].fifo).size(); ++r) {
      const ArenaBuilder::Numbers &numbers = arenas.of(refs[i].fifo)[r];
      // The half of a FIFO stands for all of its readers.
      if (r == 0 || !plan.ends[numbers.src][numbers.write_end].leaves) plan.refs.push_back({numbers.write_end, r});
    }
  step.nsend = static_cast<uint16_t>(plan.refs.size() - own_ref - nrecv);
  plan.steps.push_back(step);
}

// Adds the steps of all ranks and channels of a program, on at most `limit` channels (0: the program's number). Channels are
// dealt round-robin, as collc.lowering.merge_channels does. Returns the number of channels.
inline uint32_t add_channels(const Tables &tables, const ArenaBuilder &arenas, const Program &program, uint32_t limit,
                             DevicePlan &plan) {
  const RankChannel *places = tables.rank_channels + program.first_rank_channel;
  const uint32_t channels = limit == 0 ? program.nchannels : std::min(limit, program.nchannels);
  for (uint32_t rank = 0; rank < plan.nranks; ++rank)
    for (uint32_t first = 0; first < channels; ++first) {
      const auto first_step = static_cast<uint32_t>(plan.steps.size()), first_ref = static_cast<uint32_t>(plan.refs.size());
      for (uint32_t c = first; c < program.nchannels; c += channels) {
        const RankChannel &place = places[rank * program.nchannels + c];
        for (uint32_t s = 0; s < place.nsteps; ++s)
          add_step(tables, arenas, tables.steps[place.first_step + s], first_ref, plan);
      }
      const auto nsteps = static_cast<uint32_t>(plan.steps.size()) - first_step;
      plan.channels.push_back({first_step, nsteps, first_ref, static_cast<uint32_t>(plan.refs.size()) - first_ref, kNoVariant});
      mark_overwritten(plan.channels.back(), &plan.steps);
    }
  return channels;
}

// The places of a program's rows in the plan.
struct Rows {
  uint32_t first_share;
  uint32_t first_rank_channel;
  uint32_t nchannels;
  uint32_t channels_at;
  CachedTables cached;
};

inline Rows add_rows(const Tables &tables, const ArenaBuilder &arenas, const Program &program,
                     const std::vector<uint32_t> &nccl_rank, DevicePlan &plan) {
  Rows rows{static_cast<uint32_t>(plan.shares.size()), static_cast<uint32_t>(plan.channels.size()), 0, plan.shares_at, {}};
  for (uint32_t s = 0; s < program.nshares; ++s) {
    Share share = tables.shares[program.first_share + s];
    share.block = static_cast<uint16_t>(nccl_block(program.collective, share.block, nccl_rank));
    plan.shares.push_back(with_inverse(share));
  }
  rows.nchannels = add_channels(tables, arenas, program, plan.overrides.channels, plan);
  rows.cached = most_cached(plan.channels, rows.first_rank_channel);
  plan.shares_at += rows.nchannels * channel_units(rows.cached);
  return rows;
}

inline void add_program(const Tables &tables, uint32_t number, const Program &program, const Rows &rows, ArenaBuilder &arenas,
                        DevicePlan &plan) {
  const RankChannel *places = tables.rank_channels + program.first_rank_channel;
  for (uint32_t protocol = 0; protocol < kProtocols; ++protocol) {
    Program row = program;
    row.first_share = rows.first_share;
    row.first_rank_channel = rows.first_rank_channel;
    row.nchannels = rows.nchannels;
    row.protocol = static_cast<uint8_t>(protocol);
    const uint32_t half = plan.half_bytes[protocol];
    row.chunk_bytes = chunk_for(program, protocol, plan.overrides, plan.wired[number] ? plan.wired_bytes : half);
    plan.programs.push_back(row);
    plan.cached.push_back(rows.cached);
    plan.channels_at.push_back(rows.channels_at);
    if (!plan.runs_over(number, protocol)) continue;
    // Whole lines where nobody else counts them.
    const uint32_t slot_bytes =
        half != 0 && protocol != kLL ? half : slot_bytes_for(protocol, half != 0 ? half : row.chunk_bytes);
    for (uint32_t c = 0; c < plan.nranks * program.nchannels; ++c)
      for (uint32_t s = 0; s < places[c].nsteps; ++s) {
        const Step &step = tables.steps[places[c].first_step + s];
        if (step.flags & kSwitchSum) arenas.join(tables.refs + step.first_ref, step.nrecv, false);
        if (step.flags & kSwitchCopy) arenas.join(tables.refs + step.first_ref + step.nrecv, step.nsend, true);
        for (uint32_t i = 0; i < step.nsend; ++i)
          arenas.use(tables.refs[step.first_ref + step.nrecv + i].fifo, protocol, slot_bytes);
      }
  }
  plan.max_channels = std::max(plan.max_channels, rows.nchannels);
  plan.max_shared = std::max(plan.max_shared, plan.shared_bytes_of(number * kProtocols));
}

}  // namespace detail

// Fills `plan`. Returns the reason if the device cannot run it; "": it can.
inline std::string make_device_plan(const Tables &tables, const Allocation &allocation, const PlanSettings &settings,
                                    DevicePlan &plan) {
  const Elsewhere &elsewhere = settings.elsewhere;
  plan.nranks = allocation.nranks;
  plan.slots = allocation.slots;
  plan.overrides = settings.overrides;
  plan.by_size = true;
  plan.has_ll128 = settings.has_ll128;
  plan.elsewhere = elsewhere;
  if (elsewhere.any()) plan.half_bytes[kSimple] = plan.half_bytes[kLL128] = allocation.slot_bytes;
  if (elsewhere.any()) plan.half_bytes[kLL] = elsewhere.lines.chunk_bytes;
  const ClassFifos classes = class_fifos(tables, allocation);
  plan.wired_bytes = slot_bytes_for(kSimple, classes.wired_chunk);
  plan.pinned = PinnedPlan(plan.nranks, settings.pinned, staged_pairs(tables, allocation, classes.staged));
  detail::ArenaBuilder arenas(tables, allocation, classes, plan);
  const Program *programs = tables.programs + allocation.first_program;
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    if (programs[p].protocol >= kProtocols) return "this plan asks for a protocol that the kernels do not have";
    plan.own_protocols.push_back(programs[p].protocol);
    plan.cut.push_back(program_weights(programs[p]) != 0);
    plan.wired.push_back(is_wired(programs[p]));
    plan.in_switch.push_back(uses_switch(tables, programs[p], plan.nranks));
    plan.lined.push_back(elsewhere.has_lines(tables, allocation, programs[p]));
    plan.by_size &= programs[p].protocol == kSimple;
  }
  // Programs that differ only in chunks and protocol share their rows.
  std::map<std::pair<uint32_t, uint32_t>, detail::Rows> known;
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const std::pair<uint32_t, uint32_t> key{programs[p].first_share, programs[p].first_rank_channel};
    if (known.count(key) == 0) known[key] = detail::add_rows(tables, arenas, programs[p], settings.nccl_rank, plan);
    detail::add_program(tables, p, programs[p], known[key], arenas, plan);
  }
  arenas.lay_out();
  plan.lanes = elsewhere.any() ? plan_lanes_beside_queues(plan.nranks, elsewhere.queue_slots, elsewhere.queue_slot_bytes)
                               : plan_lanes(plan.nranks, plan.overrides.chunk_bytes != 0 ? plan.overrides.chunk_bytes
                                                                                         : allocation.slot_bytes);
  plan.lanes_at = plan.arena_bytes;
  for (uint32_t rank = 0; rank < plan.nranks; ++rank)
    if (plan.has_lanes(rank)) plan.arena_bytes[rank] += plan.lanes.bytes_in_all();
  plan.pinned.lay_out(plan.lanes.bytes_in_region());
  return what_kernels_lack(plan.steps);
}

}  // namespace collc::cuda
