#include "wire/lanes.h"

#include <algorithm>

namespace collc {
namespace {

// Counts of read chunks wait behind no more than this.
constexpr uint64_t kMostQueued = 256 << 10;

}  // namespace

Lanes::Lanes(const LaneContext &context, uint32_t machine) : context_(context) {
  const Placement &placement = context_.placement;
  const auto on = [&](uint32_t rank) { return placement.machine[rank] == machine; };
  for (uint32_t f = 0; f < context_.fifos.count(); ++f) {
    const FifoEnd &end = context_.fifos[f];
    if (end.tail == nullptr) continue;
    const uint32_t source = placement.nccl_rank[end.source], reader = placement.nccl_rank[end.readers[0]];
    if (placement.is_here(source) && on(reader)) {
      out_place_[f] = out_.size();
      out_.emplace_back(f, end, context_.fifos.slots());
    } else if (on(source) && placement.is_here(reader)) {
      in_place_[f] = in_.size();
      in_.emplace_back(f, end, context_.fifos.slots());
    }
  }
  const auto nranks = static_cast<uint32_t>(placement.machine.size());
  for (uint32_t from = 0; from < nranks; ++from)
    for (uint32_t to = 0; to < nranks; ++to) {
      const uint32_t object = from * nranks + to;
      if (placement.is_here(from) && on(to)) {
        transfer_out_place_[object] = transfers_out_.size();
        transfers_out_.emplace_back(object, from, to, &context_.queue(from, to));
      } else if (on(from) && placement.is_here(to)) {
        transfer_in_place_[object] = transfers_in_.size();
        transfers_in_.emplace_back(object, from, to, &context_.queue(from, to));
      }
    }
}

bool Lanes::send(WireConnection &connection) {
  bool any = return_heads(connection);
  // Each lane in turn sends one chunk, so that a full one delays no other.
  const size_t lanes = out_.size() + transfers_out_.size();
  for (size_t without = 0; without < lanes && connection.queued_bytes() < kMostQueued; turn_ = (turn_ + 1) % lanes) {
    const bool taken = turn_ < out_.size() ? take_chunk(connection, out_[turn_])
                                           : take_transfer(connection, transfers_out_[turn_ - out_.size()]);
    without = taken ? 0 : without + 1;
    any |= taken;
  }
  if (Rails *const rails = connection.rails()) any |= send_waiting(*rails);
  return any;
}

bool Lanes::return_heads(WireConnection &connection) {
  bool any = false;
  uint32_t lost = kNoRail;
  for (Rails *const rails = connection.rails(); rails != nullptr && rails->take_closed(&lost); any = true) {
    for (Lane &lane : in_) grant_again(connection, lane, WireKind::kGrant, lost);
    for (Lane &lane : transfers_in_) grant_again(connection, lane, WireKind::kTransferGrant, lost);
  }
  const bool granting = connection.rails() != nullptr;
  // Nothing has come that was not read, and all that may come is granted.
  const auto rests = [granting](const Lane &lane) {
    return lane.returned == lane.passed && (!granting || lane.in.granted() != 0);
  };
  for (FifoLane &lane : in_)
    if (!rests(lane)) any |= return_head(connection, lane, WireKind::kHead, read_of(lane));
  for (TransferLane &lane : transfers_in_)
    if (!rests(lane)) any |= return_head(connection, lane, WireKind::kTransferHead, read_of(lane));
  return any;
}

// What was read, and which rails the next chunks take. Nothing is granted at the beginning, so that is told at once.
bool Lanes::return_head(WireConnection &connection, Lane &lane, WireKind kind, uint64_t read) {
  Rails *const rails = connection.rails();
  bool any = false;
  for (bool first = true;; first = false) {
    uint64_t granted = 0;
    const uint32_t count = rails != nullptr ? lane.in.grant(read, rails->rates(), &granted) : 0;
    if (count == 0 && (!first || read == lane.returned)) return any;
    lane.returned = read;
    connection.send(wire_head(kind, lane.object, read, granted, 0, count), nullptr);
    any = true;
  }
}

// Chunks that did not come before their rail was closed.
void Lanes::grant_again(WireConnection &connection, Lane &lane, WireKind kind, uint32_t lost) {
  for (uint64_t number = lane.passed; number < lane.in.granted(); ++number) {
    const uint32_t rail = lane.in.grant_again(number, lost, connection.rails()->rates());
    if (rail != kNoRail) connection.send(wire_head(kind, lane.object, number, 0, 0, rail), nullptr);
  }
}

// Whether the writer has shown the next chunk. One in a line has its number there; of any other the tail tells, which passes
// chunks in lines too, so the line is looked at after it.
bool Lanes::has_chunk(const FifoLane &lane, bool *in_line) const {
  const uint64_t tail = lane.end.tail->load(std::memory_order_acquire);
  const SlotLine &line = lane.end.lines[context_.fifos.slot_of(lane.passed)];
  *in_line = line.number.load(std::memory_order_acquire) == lane.passed + 1;
  return *in_line || tail > lane.passed;
}

WireHead Lanes::chunk_head(const FifoLane &lane, uint64_t number) const {
  const uint64_t slot = context_.fifos.slot_of(number);
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(lane.end.lines[slot].chunk.bytes, context_.fifos.slot_bytes()));
  return wire_head(WireKind::kChunk, lane.object, number, lane.end.tags[slot], bytes, 0);
}

WireHead Lanes::transfer_head(const TransferLane &lane, uint64_t number) const {
  const uint64_t slot = number % TransferLayout::kSlots;
  const uint32_t bytes = std::min(lane.queue->bytes[slot], context_.transfers.slot_bytes());
  return wire_head(WireKind::kTransfer, lane.object, number, lane.queue->signatures[slot], bytes);
}

bool Lanes::take_chunk(WireConnection &connection, FifoLane &lane) {
  bool in_line = false;
  if (!has_chunk(lane, &in_line)) return false;
  const SlotLine &line = lane.end.lines[context_.fifos.slot_of(lane.passed)];
  if (in_line)
    pass(connection, lane, wire_head(WireKind::kChunk, lane.object, lane.passed, line.tag, SlotLine::kData, 1), line.data);
  else
    pass(connection, lane, chunk_head(lane, lane.passed), slot_of(lane, lane.passed));
  return true;
}

bool Lanes::take_transfer(WireConnection &connection, TransferLane &lane) {
  if (lane.queue->tail.load(std::memory_order_acquire) <= lane.passed) return false;
  pass(connection, lane, transfer_head(lane, lane.passed), slot_of(lane, lane.passed));
  return true;
}

// The next chunk goes at once, or waits for its rail.
void Lanes::pass(WireConnection &connection, Lane &lane, const WireHead &head, const void *body) {
  if (connection.rails() != nullptr && head.bytes > kMostBesideRails) {
    lane.out.wait(lane.passed++);
    return;
  }
  lane.out.skip(lane.passed++);
  connection.send(head, body);
}

bool Lanes::find_ready(const Rails &rails, const Lane &lane, uint64_t *number, uint32_t *rail) {
  if (!lane.out.any_waiting()) return false;
  for (*number = 0; lane.out.find_waiting(number, lane.passed, rail); ++*number)
    if (rails.has_room(*rail)) return true;
  return false;
}

bool Lanes::send_waiting(Rails &rails) {
  bool any = false;
  const size_t lanes = out_.size() + transfers_out_.size();
  for (size_t without = 0; without < lanes; rail_turn_ = (rail_turn_ + 1) % lanes) {
    const bool fifo = rail_turn_ < out_.size();
    Lane &lane = fifo ? static_cast<Lane &>(out_[rail_turn_]) : transfers_out_[rail_turn_ - out_.size()];
    uint64_t number = 0;
    uint32_t rail = kNoRail;
    const bool ready = find_ready(rails, lane, &number, &rail);
    without = ready ? 0 : without + 1;
    if (!ready) continue;
    any = true;
    if (fifo) {
      const FifoLane &one = out_[rail_turn_];
      lane.out.sent(number, rails.send_on(rail, chunk_head(one, number), slot_of(one, number)));
    } else {
      const TransferLane &one = transfers_out_[rail_turn_ - out_.size()];
      lane.out.sent(number, rails.send_on(rail, transfer_head(one, number), slot_of(one, number)));
    }
  }
  return any;
}

bool Lanes::has_arrived(const Lane &lane, const Rails *rails) {
  if (rails == nullptr) return true;
  for (uint64_t number = lane.out.read(); number < lane.passed; ++number) {
    const RailTicket *const ticket = lane.out.ticket(number);
    if (ticket != nullptr && (ticket->rail == kNoRail || !rails->has_arrived(*ticket))) return false;
  }
  return true;
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

Status Lanes::wrong(const WireHead &head) const {
  return fail(ncclInternalError, "it sent a message that the tables do not have (kind %u, object %u, number %llu, %u bytes)",
              head.kind, head.object, static_cast<unsigned long long>(head.number), head.bytes);
}

// The chunk is of a FIFO that is read here, and fits into a slot.
Lanes::FifoLane *Lanes::fifo_read_here(const WireHead &head) {
  const auto found = in_place_.find(head.object);
  if (found == in_place_.end()) return nullptr;
  const bool in_line = (head.extra & 1) != 0;
  const bool fits = in_line ? head.bytes == SlotLine::kData : head.bytes <= context_.fifos.slot_bytes();
  return fits ? &in_[found->second] : nullptr;
}

Lanes::TransferLane *Lanes::transfer_read_here(const WireHead &head) {
  const auto found = transfer_in_place_.find(head.object);
  if (found == transfer_in_place_.end() || head.bytes > context_.transfers.slot_bytes()) return nullptr;
  return &transfers_in_[found->second];
}

// A slot gets one chunk, over the rail that it was granted to.
Status Lanes::place(const WireHead &head, char **body) {
  if (kind_of(head) == WireKind::kChunk) {
    FifoLane *const lane = fifo_read_here(head);
    if (lane == nullptr || !lane->in.place(head.number, read_of(*lane), rail_of(head))) return wrong(head);
    *body = (head.extra & 1) != 0 ? reinterpret_cast<char *>(lane->end.lines[context_.fifos.slot_of(head.number)].data)
                                  : slot_of(*lane, head.number);
    return {};
  }
  if (kind_of(head) != WireKind::kTransfer) return wrong(head);
  TransferLane *const lane = transfer_read_here(head);
  if (lane == nullptr || !lane->in.place(head.number, read_of(*lane), rail_of(head))) return wrong(head);
  *body = slot_of(*lane, head.number);
  return {};
}

Status Lanes::take(const WireHead &head) {
  switch (kind_of(head)) {
    case WireKind::kChunk: {
      FifoLane *const lane = fifo_read_here(head);
      if (lane == nullptr || !lane->in.arrive(head.number, read_of(*lane), rail_of(head))) return wrong(head);
      lane->head_of(head.number) = head;
      publish(*lane);
      return {};
    }
    case WireKind::kTransfer: {
      TransferLane *const lane = transfer_read_here(head);
      if (lane == nullptr || !lane->in.arrive(head.number, read_of(*lane), rail_of(head))) return wrong(head);
      lane->head_of(head.number) = head;
      publish(*lane);
      return {};
    }
    case WireKind::kHead:
    case WireKind::kTransferHead:
      return take_head(head);
    case WireKind::kGrant:
    case WireKind::kTransferGrant:
      return take_grant(head);
    default:
      return wrong(head);
  }
}

void Lanes::publish(FifoLane &lane) {
  Segment &segment = context_.segment;
  const uint64_t before = lane.passed;
  for (; lane.in.has_arrived(lane.passed); lane.in.publish(lane.passed++)) {
    const WireHead &head = lane.head_of(lane.passed);
    const uint64_t slot = context_.fifos.slot_of(lane.passed);
    const bool in_line = (head.extra & 1) != 0;
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
  if (lane == nullptr || !lane->out.grant(head.number, head.extra, head.tag, lane->passed)) return wrong(head);
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

Status Lanes::take_grant(const WireHead &head) {
  Lane *const lane = written_here(head.object, kind_of(head) == WireKind::kTransferGrant);
  if (lane == nullptr || !lane->out.grant_again(head.number, head.extra)) return wrong(head);
  return {};
}

}  // namespace collc
