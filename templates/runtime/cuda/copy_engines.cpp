#include "cuda/copy_engines.h"

#include "cuda/staged.h"
#include "plan/weights.h"

namespace collc::cuda {
namespace {

struct Participant {
  CudaRank *rank;
  const Call *call;
  StreamPlace place;

  Stream stream() const { return call->stream; }
  Context context() const { return rank->device().context; }
};
using Participants = std::vector<Participant>;  // by NCCL rank

// A copy that the GPU of a rank makes from its memory.
struct Copy {
  size_t rank;
  Address to, from;
  uint64_t bytes;
};
using Copies = std::vector<Copy>;

void add_copy(Copies *copies, const Copy &one) {
  if (one.bytes != 0 && one.to != one.from) copies->push_back(one);
}

// In turn each GPU writes to another one, and none to the same as another.
Copies copies_of_all_gather(const Participants &all, uint64_t bytes) {
  Copies copies;
  for (size_t turn = 0; turn < all.size(); ++turn)
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const Participant &to = all[(rank + turn) % all.size()];
      add_copy(&copies, {rank, address(to.call->output) + rank * bytes, address(all[rank].call->input), bytes});
    }
  return copies;
}

// Each rank gets a part of the root's data and passes it on to the others: two steps that take about the time of one whole
// copy. Otherwise one copy per rank would leave the root.
std::vector<Copies> copies_of_broadcast(const Participants &all, size_t root, uint64_t bytes) {
  const Address input = address(all[root].call->input);
  const auto copy_part = [&](size_t part, size_t by, size_t to, Address from) {
    const BroadcastPart one(bytes, all.size(), part);
    return Copy{by, address(all[to].call->output) + one.at, from + one.at, one.bytes};
  };
  Copies first, second;
  for (size_t turn = 1; turn < all.size(); ++turn) {
    const size_t part = (root + turn) % all.size();
    add_copy(&first, copy_part(part, root, part, input));
  }
  add_copy(&first, {root, address(all[root].call->output), input, bytes});
  for (size_t turn = 1; turn < all.size(); ++turn)
    for (size_t part = 0; part < all.size(); ++part) {
      const size_t to = (part + turn) % all.size();
      const Address from = part == root ? input : address(all[part].call->output);
      if (to != root) add_copy(&second, copy_part(part, part, to, from));
    }
  return {first, second};
}

// Makes later work on the stream of any rank wait for all work that is now on the streams of all ranks.
Status join_streams(const Participants &all) {
  const Driver &cu = driver();
  const Participant &hub = all[0];
  for (size_t r = 1; r < all.size(); ++r) {
    const Current current(all[r].context());
    COLLC_RETURN_IF_FAILED(check(cu.event_record(all[r].rank->async_calls()->ready(), all[r].stream()), "recording an event"));
  }
  {
    const Current current(hub.context());
    for (size_t r = 1; r < all.size(); ++r)
      COLLC_RETURN_IF_FAILED(check(cu.stream_wait(hub.stream(), all[r].rank->async_calls()->ready(), 0), "ordering streams"));
    COLLC_RETURN_IF_FAILED(check(cu.event_record(hub.rank->async_calls()->ready(), hub.stream()), "recording an event"));
  }
  for (size_t r = 1; r < all.size(); ++r) {
    const Current current(all[r].context());
    COLLC_RETURN_IF_FAILED(check(cu.stream_wait(all[r].stream(), hub.rank->async_calls()->ready(), 0), "ordering streams"));
  }
  return {};
}

Status put_steps(const Participants &all, const std::vector<Copies> &steps) {
  for (const Participant &one : all) {
    const Current current(one.context());
    COLLC_RETURN_IF_FAILED(one.rank->async_calls()->order().follow(one.stream(), one.place));
  }
  COLLC_RETURN_IF_FAILED(join_streams(all));
  for (const Copies &copies : steps) {
    for (const Copy &copy : copies) {
      const Participant &by = all[copy.rank];
      const Current current(by.context());
      COLLC_RETURN_IF_FAILED(check(driver().copy_async(copy.to, copy.from, copy.bytes, by.stream()), "copying to another GPU"));
    }
    COLLC_RETURN_IF_FAILED(join_streams(all));
  }
  return {};
}

Status run_steps(const Participants &all, const std::vector<Copies> &steps) {
  const std::shared_lock<std::shared_mutex> launches(launching());
  Status status = put_steps(all, steps);
  // Also after a failure: the end of the communicator waits for its work on the streams.
  for (const Participant &one : all) {
    const Current current(one.context());
    const Status noted = one.rank->async_calls()->order().note(one.stream(), one.place);
    if (status.ok()) status = noted;
  }
  return status;
}

// Returns true for memory of cuMemAlloc, which every GPU with peer access can write. Memory of pools and mappings has other
// rules.
bool is_open_to_peers(const void *memory) {
  uint64_t is_plain = 0;
  return driver().pointer_attribute(&is_plain, kIsPlainAllocation, address(memory)) == 0 && is_plain != 0;
}

// Returns true if copy engines should do a call. The same for all ranks of the communicator, whichever thread makes their
// calls.
bool is_for_copies(const Together &round) {
  CudaRank &first = rank_of(*round[0]);
  const Call &call = round[0]->call;
  const uint64_t least = first.copies().least_bytes();
  if (least == 0 || bytes_of(call) < least) return false;
  if (!is_copied(call.collective)) return false;
  // Programs of several classes have a part over PCIe, which a group that has all calls does in the same way as others.
  return program_weights(*call.program) == 0 || (first.copies().lane(CopyLane::kHost) != nullptr && !is_wired(*call.program));
}

// False: not all ranks are here, or their buffers are not open to each other's GPUs.
bool find_participants(const Together &round, Participants *all) {
  const World &world = *rank_of(*round[0]).world();
  if (program_weights(*round[0]->call.program) != 0) return false;
  if (round.size() != world.nranks() || !world.copies_between_all()) return false;
  all->resize(round.size());
  for (const Submission *one : round) {
    CudaRank &rank = rank_of(*one);
    const Current current(rank.device().context);
    StreamPlace place;
    if (!CallOrder::look(one->call.stream, &place).ok() || place.capture != 0 || !is_open_to_peers(one->call.output))
      return false;
    (*all)[rank.context().rank] = {&rank, &one->call, place};
  }
  return true;
}

// The part of a call that a lane carries.
struct LanePart {
  StagedCopies *lane;
  CopyRange range;
  LaneStreams streams;  // in a capture both the call's own, which nothing else may join
};

// The call of one rank, without the buffers of other ranks.
struct StagedCall {
  CudaRank *rank;
  const Call *call;
  StreamPlace place;
  std::vector<LanePart> parts;
  bool begun = false;
};

// Returns the streams of a call's parts without the stream of the call, each once.
std::vector<Stream> side_streams(const StagedCall &one) {
  std::vector<Stream> streams;
  for (const LanePart &part : one.parts)
    for (const Stream stream : {part.streams.fill, part.streams.read})
      if (stream != one.call->stream && std::find(streams.begin(), streams.end(), stream) == streams.end())
        streams.push_back(stream);
  return streams;
}

Status continue_on(CudaRank &rank, Stream from, Stream to) {
  COLLC_RETURN_IF_FAILED(check(driver().event_record(rank.async_calls()->ready(), from), "recording an event"));
  return check(driver().stream_wait(to, rank.async_calls()->ready(), 0), "ordering streams");
}

Status begin_call(StagedCall *one) {
  const Current current(one->rank->device().context);
  COLLC_RETURN_IF_FAILED(CallOrder::look(one->call->stream, &one->place));
  const bool captured = one->place.capture != 0;
  const auto ranges = one->rank->copies().cut(*one->call, one->rank->path_classes()->start_copies(*one->call, captured));
  for (const CopyLane lane : {CopyLane::kGpu, CopyLane::kHost}) {
    const CopyRange &range = ranges[static_cast<uint32_t>(lane)];
    StagedCopies *const copies = one->rank->copies().lane(lane);
    if (range.bytes == 0) continue;
    const LaneStreams own = {one->call->stream, one->call->stream};
    one->parts.push_back({copies, range, captured ? own : copies->streams()});
  }
  COLLC_RETURN_IF_FAILED(one->rank->async_calls()->order().follow(one->call->stream, one->place));
  one->begun = true;
  for (const Stream side : side_streams(*one)) COLLC_RETURN_IF_FAILED(continue_on(*one->rank, one->call->stream, side));
  return {};
}

// Must also follow a call that has failed: the end of the communicator waits for its work on the streams.
Status end_call(const StagedCall &one) {
  const Current current(one.rank->device().context);
  Status joined;
  Stream last = one.call->stream;
  for (const Stream side : side_streams(one)) {
    const Status status = continue_on(*one.rank, side, one.call->stream);
    if (status.ok() || !joined.ok()) continue;
    joined = status;
    last = side;
  }
  const Status noted = one.rank->async_calls()->order().note(last, joined.ok() ? one.place : StreamPlace{});
  return noted.ok() ? joined : noted;
}

// Goes piece by piece over all calls, because a stream takes a limited number of operations, and these may wait for operations
// that other streams get later.
Status put_staged(std::vector<StagedCall> *calls) {
  for (StagedCall &one : *calls) COLLC_RETURN_IF_FAILED(begin_call(&one));
  bool more = true;
  for (uint64_t piece = 0; more; ++piece) {
    more = false;
    for (const StagedCall &one : *calls)
      for (const LanePart &part : one.parts) {
        const uint64_t pieces = part.lane->pieces(part.range);
        if (piece >= pieces) continue;
        more |= piece + 1 < pieces;
        const Current current(one.rank->device().context);
        COLLC_RETURN_IF_FAILED(part.lane->put_piece(*one.call, part.range, piece, part.streams));
      }
  }
  return {};
}

Status run_staged(const Together &round) {
  const std::shared_lock<std::shared_mutex> launches(launching());
  std::vector<StagedCall> calls;
  for (const Submission *one : round) calls.push_back({&rank_of(*one), &one->call, {}, {}});
  Status status = put_staged(&calls);
  for (const StagedCall &one : calls) {
    const Status ended = one.begun ? end_call(one) : Status();
    if (status.ok()) status = ended;
  }
  if (!status.ok()) rank_of(*round[0]).end(status);  // other ranks wait for these copies
  return status;
}

}  // namespace

bool run_by_copies(const Together &round, Status *outcome) {
  if (!is_for_copies(round)) return false;
  Participants all;
  if (!find_participants(round, &all)) {
    if (!rank_of(*round[0]).copies().has_lanes()) return false;
    *outcome = run_staged(round);
    return true;
  }
  const Call &call = *all[0].call;
  const uint64_t bytes = bytes_of(call);
  *outcome = run_steps(all, call.collective == Collective::kAllGather
                                ? std::vector<Copies>{copies_of_all_gather(all, bytes)}
                                : copies_of_broadcast(all, static_cast<size_t>(call.root), bytes));
  return true;
}

}  // namespace collc::cuda
