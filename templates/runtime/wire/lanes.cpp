#include "wire/lanes.h"

#include <algorithm>

namespace collc {
namespace {

uint64_t end_of(const WireHead &head) { return uint64_t{head.extra >> kPieceShift} * kPieceUnit + head.bytes; }

}  // namespace

Lanes::Lanes(const LaneContext &context, uint32_t machine) : context_(context), machine_(machine) {
  const Placement &placement = context_.placement;
  const auto on = [&](uint32_t rank) { return placement.machine[rank] == machine; };
  add_fifos(machine, context_.fifos, 0, false);
  add_fifos(machine, context_.lined, context_.fifos.count(), true);
  if (context_.ranks != nullptr) return;  // ranks of one server transfer in other ways
  const auto nranks = static_cast<uint32_t>(placement.machine.size());
  for (uint32_t from = 0; from < nranks; ++from)
    for (uint32_t to = 0; to < nranks; ++to) {
      const uint32_t object = from * nranks + to;
      if (placement.is_here(from) && on(to)) {
        transfer_out_place_[object] = transfers_out_.size();
        transfers_out_.emplace_back(object, from, to, context_);
      } else if (on(from) && placement.is_here(to)) {
        transfer_in_place_[object] = transfers_in_.size();
        transfers_in_.emplace_back(object, from, to, context_);
      }
    }
}

// FIFO f has the object number `first` + f.
void Lanes::add_fifos(uint32_t machine, const Fifos &fifos, uint32_t first, bool lined) {
  const Placement &placement = context_.placement;
  const auto on = [&](uint32_t rank) { return placement.machine[rank] == machine; };
  for (uint32_t f = 0; f < fifos.count(); ++f) {
    const FifoEnd &end = fifos[f];
    if (end.tail == nullptr) continue;
    const uint32_t source = placement.nccl_rank[end.source], reader = placement.nccl_rank[end.readers[0]];
    const bool leaves = placement.is_here(source) && on(reader);
    if (!leaves && !(on(source) && placement.is_here(reader))) continue;
    std::vector<FifoLane> &lanes = leaves ? out_ : in_;
    (leaves ? out_place_ : in_place_)[first + f] = lanes.size();
    lanes.emplace_back(first + f, end, fifos.slots());
    if (lined) lanes.back().lined = std::make_unique<LinedSlots>(end, fifos.slots(), fifos.slot_bytes());
  }
}

bool Lanes::send(WireConnection &connection) {
  bool any = return_heads(connection);
  // The queues take turns and send one chunk each, so that a full queue delays no other.
  const size_t lanes = out_.size() + transfers_out_.size();
  for (size_t without = 0; without < lanes && connection.queued_bytes() < connection.enough(); turn_ = (turn_ + 1) % lanes) {
    const bool taken = turn_ < out_.size() ? take_chunk(connection, out_[turn_], &any)
                                           : take_transfer(connection, transfers_out_[turn_ - out_.size()]);
    without = taken ? 0 : without + 1;
    any |= taken;
  }
  if (Rails *const rails = connection.rails()) any |= send_waiting(*rails);
  return any;
}

bool Lanes::return_heads(WireConnection &connection) {
  bool any = false;
  // Skips a queue if all chunks that came have been read.
  for (FifoLane &lane : in_)
    if (lane.returned != lane.passed) any |= return_head(connection, lane, WireKind::kHead, read_of(lane));
  for (TransferLane &lane : transfers_in_)
    if (lane.returned != lane.passed) any |= return_head(connection, lane, WireKind::kTransferHead, read_of(lane));
  return any;
}

bool Lanes::return_head(WireConnection &connection, Lane &lane, WireKind kind, uint64_t read) {
  read = std::min(read, lane.passed);  // readers of lines do not wait for a chunk without data, so their count may be ahead
  if (read == lane.returned) return false;
  lane.returned = read;
  connection.send(wire_head(kind, lane.object, read), nullptr);
  return true;
}

// Returns whether the writer has published the next chunk. If the chunk is in a line, the line has its number. Any other
// chunk shows only in the tail. The tail also counts chunks in lines, so the line must be loaded after the tail.
bool Lanes::has_chunk(const FifoLane &lane, bool *in_line) const {
  *in_line = false;
  if (lane.lined != nullptr) return lane.lined->is_whole(lane.passed);
  const uint64_t tail = lane.end.tail->load(std::memory_order_acquire);
  const SlotLine &line = lane.end.lines[context_.fifos.slot_of(lane.passed)];
  *in_line = line.number.load(std::memory_order_acquire) == lane.passed + 1;
  return *in_line || tail > lane.passed;
}

WireHead Lanes::chunk_head(const FifoLane &lane, uint64_t number) const {
  if (lane.lined != nullptr) return wire_head(WireKind::kChunk, lane.object, number, 0, lane.lined->bytes(number), kLastPiece);
  const uint64_t slot = context_.fifos.slot_of(number);
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(lane.end.lines[slot].chunk.bytes, context_.fifos.slot_bytes()));
  return wire_head(WireKind::kChunk, lane.object, number, lane.end.tags[slot], bytes, kLastPiece);
}

WireHead Lanes::transfer_head(const TransferLane &lane, uint64_t number) const {
  const uint64_t slot = number % TransferLayout::kSlots;
  const uint32_t bytes = std::min(lane.queue->bytes[slot], context_.transfers.slot_bytes());
  return wire_head(WireKind::kTransfer, lane.object, number, lane.queue->signatures[slot], bytes, kLastPiece);
}

bool Lanes::take_chunk(WireConnection &connection, FifoLane &lane, bool *moved) {
  bool in_line = false;
  if (lane.lined != nullptr ? !lane.lined->gather(lane.passed, moved) : !has_chunk(lane, &in_line)) return false;
  const SlotLine &line = lane.end.lines[context_.fifos.slot_of(lane.passed)];
  if (in_line)
    pass(connection, lane,
         wire_head(WireKind::kChunk, lane.object, lane.passed, line.tag, SlotLine::kData, kInLine | kLastPiece), line.data);
  else
    pass(connection, lane, chunk_head(lane, lane.passed), slot_of(lane, lane.passed));
  return true;
}

bool Lanes::take_transfer(WireConnection &connection, TransferLane &lane) {
  if (lane.queue->tail.load(std::memory_order_acquire) <= lane.passed) return false;
  pass(connection, lane, transfer_head(lane, lane.passed), slot_of(lane, lane.passed));
  return true;
}

// Sends the next chunk now, or lets it wait for rails.
void Lanes::pass(WireConnection &connection, Lane &lane, const WireHead &head, const void *body) {
  if (connection.rails() != nullptr && head.bytes > kMostBesideRails) {
    lane.out.wait(lane.passed++, head.bytes);
    return;
  }
  lane.out.skip(lane.passed++);
  connection.send(head, body);
}

// Sends waiting chunks on rails, one whole chunk of each queue in turn, as long as the rails accept them.
bool Lanes::send_waiting(Rails &rails) {
  RailEnd end;
  while (rails.take_end(&end)) {
    for (Lane &lane : out_) lane.out.lose(end, lane.passed);
    for (Lane &lane : transfers_out_) lane.out.lose(end, lane.passed);
  }
  bool any = false;
  const size_t lanes = out_.size() + transfers_out_.size();
  for (size_t without = 0; without < lanes; rail_turn_ = (rail_turn_ + 1) % lanes) {
    const FifoLane *const fifo = rail_turn_ < out_.size() ? &out_[rail_turn_] : nullptr;
    const TransferLane *const transfer = fifo == nullptr ? &transfers_out_[rail_turn_ - out_.size()] : nullptr;
    Lane &lane = fifo != nullptr ? static_cast<Lane &>(out_[rail_turn_]) : transfers_out_[rail_turn_ - out_.size()];
    uint64_t number = 0;
    ChunkRange range;
    if (!lane.out.find_waiting(lane.passed, &number, &range)) {
      ++without;
      continue;
    }
    without = 0;
    const WireHead whole = fifo != nullptr ? chunk_head(*fifo, number) : transfer_head(*transfer, number);
    const char *const body = fifo != nullptr ? slot_of(*fifo, number) : slot_of(*transfer, number);
    for (const uint64_t chunk = number; number == chunk;) {
      const RailPiece piece = rails.choose(whole.bytes, range.end - range.begin);
      if (piece.rail == kNoRail) return any;
      const WireHead head = piece_head(whole, {range.begin, range.begin + piece.bytes});
      lane.out.sent(number, piece.bytes, rails.send_on(piece.rail, head, body + range.begin));
      any = true;
      if (!lane.out.find_waiting(lane.passed, &number, &range)) break;
    }
  }
  return any;
}

bool Lanes::has_arrived(const Lane &lane, const Rails *rails) {
  return rails == nullptr ||
         lane.out.has_arrived(lane.passed, [rails](const RailTicket &ticket) { return rails->has_arrived(ticket); });
}

bool Lanes::is_drained(uint32_t rank, const Rails *rails) const {
  bool in_line = false;
  for (const FifoLane &lane : out_)
    if (context_.placement.nccl_rank[lane.end.source] == rank && (has_chunk(lane, &in_line) || !has_arrived(lane, rails)))
      return false;
  for (const TransferLane &lane : transfers_out_)
    if (lane.from == rank && (lane.queue->tail.load(std::memory_order_acquire) > lane.passed || !has_arrived(lane, rails)))
      return false;
  return true;
}

bool Lanes::is_stranded() const {
  bool stranded = false;
  for (const FifoLane &lane : out_) {
    const FifoEnd &theirs = (*context_.ranks)[machine_][lane.object];
    uint32_t slowest = 0;
    const uint64_t read = theirs.least_head(&slowest);
    for (uint32_t r = 0; r < lane.end.nreaders; ++r)
      if (lane.end.head(r).load(std::memory_order_relaxed) < read) context_.segment.show(lane.end.head(r), read);
    stranded |= lane.end.tail->load(std::memory_order_acquire) > theirs.tail->load(std::memory_order_acquire);
  }
  return stranded;
}

Status Lanes::wrong(const WireHead &head) const {
  return fail(ncclInternalError, "it sent a message that the tables do not have (kind %u, object %u, number %llu, %u bytes)",
              head.kind, head.object, static_cast<unsigned long long>(head.number), head.bytes);
}

// Returns the queue if the chunk is of a FIFO that is read here and fits into a slot; else null.
Lanes::FifoLane *Lanes::fifo_read_here(const WireHead &head) {
  const auto found = in_place_.find(head.object);
  if (found == in_place_.end()) return nullptr;
  FifoLane &lane = in_[found->second];
  const bool in_line = (head.extra & kInLine) != 0;
  const uint64_t most = lane.lined != nullptr ? lane.lined->most() : context_.fifos.slot_bytes();
  const bool fits = in_line ? head.bytes == SlotLine::kData && lane.lined == nullptr : end_of(head) <= most;
  return fits ? &lane : nullptr;
}

Lanes::TransferLane *Lanes::transfer_read_here(const WireHead &head) {
  const auto found = transfer_in_place_.find(head.object);
  if (found == transfer_in_place_.end() || end_of(head) > context_.transfers.slot_bytes()) return nullptr;
  return &transfers_in_[found->second];
}

// A slot gets one chunk, in pieces that may come in any order.
Status Lanes::place(const WireHead &head, char **body) {
  if (kind_of(head) == WireKind::kChunk) {
    FifoLane *const lane = fifo_read_here(head);
    if (lane == nullptr || !lane->in.may_come(head.number, read_of(*lane))) return wrong(head);
    *body = (head.extra & kInLine) != 0 ? reinterpret_cast<char *>(lane->end.lines[context_.fifos.slot_of(head.number)].data)
                                        : slot_of(*lane, head.number) + range_of(head).begin;
    return {};
  }
  if (kind_of(head) != WireKind::kTransfer) return wrong(head);
  TransferLane *const lane = transfer_read_here(head);
  if (lane == nullptr || !lane->in.may_come(head.number, read_of(*lane))) return wrong(head);
  *body = slot_of(*lane, head.number) + range_of(head).begin;
  return {};
}

Status Lanes::take(const WireHead &head) {
  switch (kind_of(head)) {
    case WireKind::kChunk: {
      FifoLane *const lane = fifo_read_here(head);
      if (lane == nullptr || !arrive(*lane, head, read_of(*lane))) return wrong(head);
      // Each piece is published by itself. Its lines have the chunk's number, so no reader takes them for lines of another
      // chunk.
      if (lane->lined != nullptr) lane->lined->show(head.number, range_of(head), (head.extra & kLastPiece) != 0);
      publish(*lane);
      return {};
    }
    case WireKind::kTransfer: {
      TransferLane *const lane = transfer_read_here(head);
      if (lane == nullptr || !arrive(*lane, head, read_of(*lane))) return wrong(head);
      publish(*lane);
      return {};
    }
    case WireKind::kHead:
    case WireKind::kTransferHead:
      return take_head(head);
    default:
      return wrong(head);
  }
}

bool Lanes::arrive(Lane &lane, const WireHead &head, uint64_t read) {
  if (!lane.in.arrive(head.number, read, range_of(head), (head.extra & kLastPiece) != 0)) return false;
  lane.head_of(head.number) = head;
  return true;
}

void Lanes::publish(FifoLane &lane) {
  Segment &segment = context_.segment;
  const uint64_t before = lane.passed;
  for (; lane.in.has_arrived(lane.passed); lane.in.publish(lane.passed++)) {
    if (lane.lined != nullptr) continue;
    const WireHead &head = lane.head_of(lane.passed);
    const uint64_t slot = context_.fifos.slot_of(lane.passed);
    const bool in_line = (head.extra & kInLine) != 0;
    (in_line ? lane.end.lines[slot].tag : lane.end.tags[slot]) = head.tag;
    segment.show(in_line ? lane.end.lines[slot].number : *lane.end.tail, lane.passed + 1);
  }
  if (lane.passed == before) return;
  for (uint32_t r = 0; r < lane.end.nreaders; ++r) segment.ring(context_.placement.nccl_rank[lane.end.readers[r]]);
}

void Lanes::publish(TransferLane &lane) {
  const uint64_t before = lane.passed;
  for (; lane.in.has_arrived(lane.passed); lane.in.publish(lane.passed++)) {
    lane.queue->signatures[lane.passed % TransferLayout::kSlots] = lane.head_of(lane.passed).tag;
    context_.segment.show(lane.queue->tail, lane.passed + 1);
  }
  if (lane.passed != before) context_.segment.ring(lane.to);
}

Lanes::Lane *Lanes::written_here(uint32_t object, bool transfer) {
  const std::map<uint32_t, size_t> &places = transfer ? transfer_out_place_ : out_place_;
  const auto found = places.find(object);
  if (found == places.end()) return nullptr;
  return transfer ? static_cast<Lane *>(&transfers_out_[found->second]) : &out_[found->second];
}

Status Lanes::take_head(const WireHead &head) {
  const bool transfer = kind_of(head) == WireKind::kTransferHead;
  Lane *const lane = written_here(head.object, transfer);
  if (lane == nullptr || !lane->out.read(head.number, lane->passed)) return wrong(head);
  Segment &segment = context_.segment;
  if (transfer) {
    const auto &one = static_cast<const TransferLane &>(*lane);
    segment.show(one.queue->head, head.number);
    segment.ring(one.from);
    return {};
  }
  const auto &one = static_cast<const FifoLane &>(*lane);
  for (uint32_t r = 0; r < one.end.nreaders; ++r) segment.show(one.end.head(r), head.number);
  segment.ring(context_.placement.nccl_rank[one.end.source]);
  return {};
}

}  // namespace collc
