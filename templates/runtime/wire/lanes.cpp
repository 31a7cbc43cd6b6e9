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
      out_.push_back({f, end});
    } else if (on(source) && placement.is_here(reader)) {
      in_place_[f] = in_.size();
      in_.push_back({f, end});
    }
  }
  const auto nranks = static_cast<uint32_t>(placement.machine.size());
  for (uint32_t from = 0; from < nranks; ++from)
    for (uint32_t to = 0; to < nranks; ++to) {
      const uint32_t object = from * nranks + to;
      if (placement.is_here(from) && on(to)) {
        transfer_out_place_[object] = transfers_out_.size();
        transfers_out_.push_back({object, from, to, &context_.queue(from, to)});
      } else if (on(from) && placement.is_here(to)) {
        transfer_in_place_[object] = transfers_in_.size();
        transfers_in_.push_back({object, from, to, &context_.queue(from, to)});
      }
    }
}

bool Lanes::send(WireConnection &connection) {
  bool any = return_heads(connection);
  // Each lane in turn sends one chunk, so that a full one delays no other.
  const size_t lanes = out_.size() + transfers_out_.size();
  for (size_t without = 0; without < lanes && connection.queued_bytes() < kMostQueued; turn_ = (turn_ + 1) % lanes) {
    const bool sent = turn_ < out_.size() ? send_chunk(connection, out_[turn_])
                                          : send_transfer(connection, transfers_out_[turn_ - out_.size()]);
    without = sent ? 0 : without + 1;
    any |= sent;
  }
  return any;
}

bool Lanes::return_heads(WireConnection &connection) {
  bool any = false;
  for (FifoLane &lane : in_) {
    if (lane.returned == lane.passed) continue;
    uint32_t slowest = 0;
    const uint64_t read = lane.end.least_head(&slowest);
    if (read == lane.returned) continue;
    lane.returned = read;
    connection.send(wire_head(WireKind::kHead, lane.fifo, read), nullptr);
    any = true;
  }
  for (TransferLane &lane : transfers_in_) {
    if (lane.returned == lane.passed) continue;
    const uint64_t read = lane.queue->head.load(std::memory_order_acquire);
    if (read == lane.returned) continue;
    lane.returned = read;
    connection.send(wire_head(WireKind::kTransferHead, lane.object, read), nullptr);
    any = true;
  }
  return any;
}

// Whether the writer has shown the next chunk. One in a line has its number there; of any other the tail tells, which passes
// chunks in lines too, so the line is looked at after it.
bool Lanes::has_chunk(const FifoLane &lane, bool *in_line) const {
  const uint64_t tail = lane.end.tail->load(std::memory_order_acquire);
  const SlotLine &line = lane.end.lines[context_.fifos.slot_of(lane.passed)];
  *in_line = line.number.load(std::memory_order_acquire) == lane.passed + 1;
  return *in_line || tail > lane.passed;
}

bool Lanes::send_chunk(WireConnection &connection, FifoLane &lane) {
  bool in_line = false;
  if (!has_chunk(lane, &in_line)) return false;
  const uint64_t slot = context_.fifos.slot_of(lane.passed);
  const SlotLine &line = lane.end.lines[slot];
  if (in_line) {
    connection.send(wire_head(WireKind::kChunk, lane.fifo, lane.passed, line.tag, SlotLine::kData, 1), line.data);
  } else {
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(line.chunk.bytes, context_.fifos.slot_bytes()));
    connection.send(wire_head(WireKind::kChunk, lane.fifo, lane.passed, lane.end.tags[slot], bytes, 0),
                    lane.end.slots + slot * context_.fifos.slot_bytes());
  }
  ++lane.passed;
  return true;
}

bool Lanes::send_transfer(WireConnection &connection, TransferLane &lane) {
  if (lane.queue->tail.load(std::memory_order_acquire) <= lane.passed) return false;
  const uint64_t slot = lane.passed % TransferLayout::kSlots;
  const uint32_t bytes = std::min(lane.queue->bytes[slot], context_.transfers.slot_bytes());
  connection.send(wire_head(WireKind::kTransfer, lane.object, lane.passed, lane.queue->signatures[slot], bytes),
                  slot_of(lane, lane.passed));
  ++lane.passed;
  return true;
}

bool Lanes::is_drained(uint32_t rank) const {
  bool in_line = false;
  for (const FifoLane &lane : out_)
    if (context_.placement.nccl_rank[lane.end.source] == rank && has_chunk(lane, &in_line)) return false;
  for (const TransferLane &lane : transfers_out_)
    if (lane.from == rank && lane.queue->tail.load(std::memory_order_acquire) > lane.passed) return false;
  return true;
}

Status Lanes::wrong(const WireHead &head) const {
  return fail(ncclInternalError, "it sent a message that the tables do not have (kind %u, object %u, number %llu, %u bytes)",
              head.kind, head.object, static_cast<unsigned long long>(head.number), head.bytes);
}

// The chunk is of a FIFO that is read here, fits into a slot, and the slot is free.
Status Lanes::check_chunk(const WireHead &head, FifoLane **lane) {
  const auto found = in_place_.find(head.object);
  if (found == in_place_.end()) return wrong(head);
  *lane = &in_[found->second];
  uint32_t slowest = 0;
  const bool fits = head.extra == 1 ? head.bytes == SlotLine::kData : head.bytes <= context_.fifos.slot_bytes();
  const bool free = head.number < (*lane)->end.least_head(&slowest) + context_.fifos.slots();
  return fits && free ? Status() : wrong(head);
}

Status Lanes::check_transfer(const WireHead &head, TransferLane **lane) {
  const auto found = transfer_in_place_.find(head.object);
  if (found == transfer_in_place_.end()) return wrong(head);
  *lane = &transfers_in_[found->second];
  const uint64_t read = (*lane)->queue->head.load(std::memory_order_acquire);
  const bool free = head.number < read + TransferLayout::kSlots;
  return free && head.bytes <= context_.transfers.slot_bytes() ? Status() : wrong(head);
}

// A slot gets one chunk: those that have a place have been told in order, and the next follows what has come or will.
Status Lanes::place(const WireHead &head, char **body) {
  if (head.kind == static_cast<uint32_t>(WireKind::kChunk)) {
    FifoLane *lane = nullptr;
    COLLC_RETURN_IF_FAILED(check_chunk(head, &lane));
    if (head.number < std::max(lane->placed, lane->passed)) return wrong(head);
    lane->placed = head.number + 1;
    const uint64_t slot = context_.fifos.slot_of(head.number);
    *body = head.extra == 1 ? reinterpret_cast<char *>(lane->end.lines[slot].data)
                            : lane->end.slots + slot * context_.fifos.slot_bytes();
    return {};
  }
  if (head.kind != static_cast<uint32_t>(WireKind::kTransfer)) return wrong(head);
  TransferLane *lane = nullptr;
  COLLC_RETURN_IF_FAILED(check_transfer(head, &lane));
  if (head.number < std::max(lane->placed, lane->passed)) return wrong(head);
  lane->placed = head.number + 1;
  *body = slot_of(*lane, head.number);
  return {};
}

Status Lanes::take(const WireHead &head) {
  Segment &segment = context_.segment;
  const std::vector<uint32_t> &nccl_rank = context_.placement.nccl_rank;
  switch (static_cast<WireKind>(head.kind)) {
    case WireKind::kChunk: {
      FifoLane *found = nullptr;
      COLLC_RETURN_IF_FAILED(check_chunk(head, &found));
      FifoLane &lane = *found;
      if (head.number != lane.passed) return wrong(head);
      const uint64_t slot = context_.fifos.slot_of(head.number);
      lane.passed = head.number + 1;
      (head.extra == 1 ? lane.end.lines[slot].tag : lane.end.tags[slot]) = head.tag;
      segment.show(head.extra == 1 ? lane.end.lines[slot].number : *lane.end.tail, lane.passed);
      for (uint32_t r = 0; r < lane.end.nreaders; ++r) segment.ring(nccl_rank[lane.end.readers[r]]);
      return {};
    }
    case WireKind::kHead: {
      const auto found = out_place_.find(head.object);
      if (found == out_place_.end() || head.number > out_[found->second].passed) return wrong(head);
      take_head(head, out_[found->second]);
      return {};
    }
    case WireKind::kTransfer: {
      TransferLane *found = nullptr;
      COLLC_RETURN_IF_FAILED(check_transfer(head, &found));
      TransferLane &lane = *found;
      if (head.number != lane.passed) return wrong(head);
      lane.passed = head.number + 1;
      lane.queue->signatures[head.number % TransferLayout::kSlots] = head.tag;
      segment.show(lane.queue->tail, lane.passed);
      segment.ring(lane.to);
      return {};
    }
    case WireKind::kTransferHead: {
      const auto found = transfer_out_place_.find(head.object);
      if (found == transfer_out_place_.end() || head.number > transfers_out_[found->second].passed) return wrong(head);
      segment.show(transfers_out_[found->second].queue->head, head.number);
      segment.ring(transfers_out_[found->second].from);
      return {};
    }
    default:
      return wrong(head);
  }
}

void Lanes::take_head(const WireHead &head, FifoLane &lane) {
  for (uint32_t r = 0; r < lane.end.nreaders; ++r) context_.segment.show(lane.end.head(r), head.number);
  context_.segment.ring(context_.placement.nccl_rank[lane.end.source]);
}

}  // namespace collc
