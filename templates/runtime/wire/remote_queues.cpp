#include "wire/remote_queues.h"

#include <algorithm>

namespace collc {
namespace {

uint64_t end_of(const WireHead &head) { return uint64_t{head.extra >> kPieceShift} * kPieceUnit + head.bytes; }

}  // namespace

RemoteQueues::RemoteQueues(const RemoteContext &context, uint32_t machine) : context_(context), machine_(machine) {
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
        transfer_out_index_[object] = transfers_out_.size();
        transfers_out_.emplace_back(object, from, to, context_);
      } else if (on(from) && placement.is_here(to)) {
        transfer_in_index_[object] = transfers_in_.size();
        transfers_in_.emplace_back(object, from, to, context_);
      }
    }
}

// FIFO f has the object number `first` + f.
void RemoteQueues::add_fifos(uint32_t machine, const Fifos &fifos, uint32_t first, bool lined) {
  const Placement &placement = context_.placement;
  const auto on = [&](uint32_t rank) { return placement.machine[rank] == machine; };
  for (uint32_t f = 0; f < fifos.count(); ++f) {
    const FifoEnd &end = fifos[f];
    if (end.tail == nullptr) continue;
    const uint32_t source = placement.nccl_rank[end.source], reader = placement.nccl_rank[end.readers[0]];
    const bool is_outgoing = placement.is_here(source) && on(reader);
    if (!is_outgoing && !(on(source) && placement.is_here(reader))) continue;
    std::vector<RemoteFifo> &queues = is_outgoing ? out_ : in_;
    (is_outgoing ? out_index_ : in_index_)[first + f] = queues.size();
    queues.emplace_back(first + f, end, fifos.slots());
    if (lined) queues.back().lined = std::make_unique<LinedSlots>(end, fifos.slots(), fifos.slot_bytes());
  }
}

bool RemoteQueues::send(WireConnection &connection) {
  bool sent_any = return_heads(connection);
  // The queues take turns and send one chunk each, so that a full queue delays no other.
  const size_t queues = out_.size() + transfers_out_.size();
  for (size_t idle = 0; idle < queues && connection.queued_bytes() < connection.busy_bytes();
       next_queue_ = (next_queue_ + 1) % queues) {
    const bool was_sent = next_queue_ < out_.size() ? send_chunk(connection, out_[next_queue_], &sent_any)
                                                    : send_transfer(connection, transfers_out_[next_queue_ - out_.size()]);
    idle = was_sent ? 0 : idle + 1;
    sent_any |= was_sent;
  }
  if (Rails *const rails = connection.rails()) sent_any |= send_waiting(*rails);
  return sent_any;
}

bool RemoteQueues::return_heads(WireConnection &connection) {
  bool sent_any = false;
  // Skips a queue if all chunks that came have been read.
  for (RemoteFifo &queue : in_)
    if (queue.acknowledged != queue.next) sent_any |= return_head(connection, queue, WireKind::kHead, read_of(queue));
  for (RemoteTransfers &queue : transfers_in_)
    if (queue.acknowledged != queue.next) sent_any |= return_head(connection, queue, WireKind::kTransferHead, read_of(queue));
  return sent_any;
}

bool RemoteQueues::return_head(WireConnection &connection, RemoteQueue &queue, WireKind kind, uint64_t read) {
  read = std::min(read, queue.next);  // readers of lines do not wait for a chunk without data, so their count may be ahead
  if (read == queue.acknowledged) return false;
  queue.acknowledged = read;
  connection.send(wire_head(kind, queue.object, read), nullptr);
  return true;
}

// Returns whether the writer has published the next chunk. If the chunk is in a line, the line has its number. Any other
// chunk shows only in the tail. The tail also counts chunks in lines, so the line must be loaded after the tail.
bool RemoteQueues::has_chunk(const RemoteFifo &queue, bool *in_line) const {
  *in_line = false;
  if (queue.lined != nullptr) return queue.lined->is_whole(queue.next);
  const uint64_t tail = queue.end.tail->load(std::memory_order_acquire);
  const SlotLine &line = queue.end.lines[context_.fifos.slot_of(queue.next)];
  *in_line = line.number.load(std::memory_order_acquire) == queue.next + 1;
  return *in_line || tail > queue.next;
}

WireHead RemoteQueues::chunk_head(const RemoteFifo &queue, uint64_t number) const {
  if (queue.lined != nullptr)
    return wire_head(WireKind::kChunk, queue.object, number, 0, queue.lined->bytes(number), kLastPiece);
  const uint64_t slot = context_.fifos.slot_of(number);
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(queue.end.lines[slot].chunk.bytes, context_.fifos.slot_bytes()));
  return wire_head(WireKind::kChunk, queue.object, number, queue.end.tags[slot], bytes, kLastPiece);
}

WireHead RemoteQueues::transfer_head(const RemoteTransfers &queue, uint64_t number) const {
  const uint64_t slot = number % TransferLayout::kSlots;
  const uint32_t bytes = std::min(queue.shared->bytes[slot], context_.transfers.slot_bytes());
  return wire_head(WireKind::kTransfer, queue.object, number, queue.shared->signatures[slot], bytes, kLastPiece);
}

bool RemoteQueues::send_chunk(WireConnection &connection, RemoteFifo &queue, bool *moved) {
  bool in_line = false;
  if (queue.lined != nullptr ? !queue.lined->gather(queue.next, moved) : !has_chunk(queue, &in_line)) return false;
  const SlotLine &line = queue.end.lines[context_.fifos.slot_of(queue.next)];
  if (in_line)
    send_or_wait(connection, queue,
                 wire_head(WireKind::kChunk, queue.object, queue.next, line.tag, SlotLine::kData, kInLine | kLastPiece),
                 line.data);
  else
    send_or_wait(connection, queue, chunk_head(queue, queue.next), slot_of(queue, queue.next));
  return true;
}

bool RemoteQueues::send_transfer(WireConnection &connection, RemoteTransfers &queue) {
  if (queue.shared->tail.load(std::memory_order_acquire) <= queue.next) return false;
  send_or_wait(connection, queue, transfer_head(queue, queue.next), slot_of(queue, queue.next));
  return true;
}

// Sends the next chunk now, or lets it wait for rails.
void RemoteQueues::send_or_wait(WireConnection &connection, RemoteQueue &queue, const WireHead &head, const void *body) {
  if (connection.rails() != nullptr && head.bytes > kMaxControlBody) {
    queue.out.add_waiting(queue.next++, head.bytes);
    return;
  }
  queue.out.skip(queue.next++);
  connection.send(head, body);
}

// Sends waiting chunks on rails, one whole chunk of each queue in turn, as long as the rails accept them.
bool RemoteQueues::send_waiting(Rails &rails) {
  RailEnd end;
  while (rails.take_end(&end)) {
    for (RemoteQueue &queue : out_) queue.out.requeue(end, queue.next);
    for (RemoteQueue &queue : transfers_out_) queue.out.requeue(end, queue.next);
  }
  bool sent_any = false;
  const size_t queues = out_.size() + transfers_out_.size();
  for (size_t idle = 0; idle < queues; next_rail_queue_ = (next_rail_queue_ + 1) % queues) {
    const RemoteFifo *const fifo = next_rail_queue_ < out_.size() ? &out_[next_rail_queue_] : nullptr;
    const RemoteTransfers *const transfer = fifo == nullptr ? &transfers_out_[next_rail_queue_ - out_.size()] : nullptr;
    RemoteQueue &queue =
        fifo != nullptr ? static_cast<RemoteQueue &>(out_[next_rail_queue_]) : transfers_out_[next_rail_queue_ - out_.size()];
    uint64_t number = 0;
    ChunkRange range;
    if (!queue.out.find_waiting(queue.next, &number, &range)) {
      ++idle;
      continue;
    }
    idle = 0;
    const WireHead full_head = fifo != nullptr ? chunk_head(*fifo, number) : transfer_head(*transfer, number);
    const char *const body = fifo != nullptr ? slot_of(*fifo, number) : slot_of(*transfer, number);
    for (const uint64_t chunk = number; number == chunk;) {
      const RailPiece piece = rails.choose(full_head.bytes, range.end - range.begin);
      if (piece.rail == kNoRail) return sent_any;
      const WireHead head = piece_head(full_head, {range.begin, range.begin + piece.bytes});
      queue.out.sent(number, piece.bytes, rails.send_on(piece.rail, head, body + range.begin));
      sent_any = true;
      if (!queue.out.find_waiting(queue.next, &number, &range)) break;
    }
  }
  return sent_any;
}

bool RemoteQueues::has_arrived(const RemoteQueue &queue, const Rails *rails) {
  return rails == nullptr ||
         queue.out.has_arrived(queue.next, [rails](const RailTicket &ticket) { return rails->has_arrived(ticket); });
}

bool RemoteQueues::is_drained(uint32_t rank, const Rails *rails) const {
  bool in_line = false;
  for (const RemoteFifo &queue : out_)
    if (context_.placement.nccl_rank[queue.end.source] == rank && (has_chunk(queue, &in_line) || !has_arrived(queue, rails)))
      return false;
  for (const RemoteTransfers &queue : transfers_out_)
    if (queue.from == rank && (queue.shared->tail.load(std::memory_order_acquire) > queue.next || !has_arrived(queue, rails)))
      return false;
  return true;
}

bool RemoteQueues::is_stranded() const {
  bool has_stranded = false;
  for (const RemoteFifo &queue : out_) {
    const FifoEnd &reader_end = (*context_.ranks)[machine_][queue.object];
    uint32_t slowest = 0;
    const uint64_t read = reader_end.least_head(&slowest);
    for (uint32_t r = 0; r < queue.end.nreaders; ++r)
      if (queue.end.head(r).load(std::memory_order_relaxed) < read) context_.segment.show(queue.end.head(r), read);
    has_stranded |= queue.end.tail->load(std::memory_order_acquire) > reader_end.tail->load(std::memory_order_acquire);
  }
  return has_stranded;
}

Status RemoteQueues::invalid_message(const WireHead &head) const {
  return fail(ncclInternalError, "it sent a message that does not match the tables (kind %u, object %u, number %llu, %u bytes)",
              head.kind, head.object, static_cast<unsigned long long>(head.number), head.bytes);
}

// Returns the queue if the chunk is of a FIFO that is read here and fits into a slot; else null.
RemoteQueues::RemoteFifo *RemoteQueues::find_incoming_fifo(const WireHead &head) {
  const auto entry = in_index_.find(head.object);
  if (entry == in_index_.end()) return nullptr;
  RemoteFifo &queue = in_[entry->second];
  const bool in_line = (head.extra & kInLine) != 0;
  const uint64_t max_bytes = queue.lined != nullptr ? queue.lined->max_bytes() : context_.fifos.slot_bytes();
  const bool fits = in_line ? head.bytes == SlotLine::kData && queue.lined == nullptr : end_of(head) <= max_bytes;
  return fits ? &queue : nullptr;
}

RemoteQueues::RemoteTransfers *RemoteQueues::find_incoming_transfers(const WireHead &head) {
  const auto entry = transfer_in_index_.find(head.object);
  if (entry == transfer_in_index_.end() || end_of(head) > context_.transfers.slot_bytes()) return nullptr;
  return &transfers_in_[entry->second];
}

// A slot gets one chunk, in pieces that may come in any order.
Status RemoteQueues::place(const WireHead &head, char **body) {
  if (kind_of(head) == WireKind::kChunk) {
    RemoteFifo *const queue = find_incoming_fifo(head);
    if (queue == nullptr || !queue->in.may_come(head.number, read_of(*queue))) return invalid_message(head);
    *body = (head.extra & kInLine) != 0 ? reinterpret_cast<char *>(queue->end.lines[context_.fifos.slot_of(head.number)].data)
                                        : slot_of(*queue, head.number) + range_of(head).begin;
    return {};
  }
  if (kind_of(head) != WireKind::kTransfer) return invalid_message(head);
  RemoteTransfers *const queue = find_incoming_transfers(head);
  if (queue == nullptr || !queue->in.may_come(head.number, read_of(*queue))) return invalid_message(head);
  *body = slot_of(*queue, head.number) + range_of(head).begin;
  return {};
}

Status RemoteQueues::take(const WireHead &head) {
  switch (kind_of(head)) {
    case WireKind::kChunk: {
      RemoteFifo *const queue = find_incoming_fifo(head);
      if (queue == nullptr || !record_piece(*queue, head, read_of(*queue))) return invalid_message(head);
      // Each piece is published by itself. Its lines have the chunk's number, so no reader takes them for lines of another
      // chunk.
      if (queue->lined != nullptr) queue->lined->show(head.number, range_of(head), (head.extra & kLastPiece) != 0);
      publish(*queue);
      return {};
    }
    case WireKind::kTransfer: {
      RemoteTransfers *const queue = find_incoming_transfers(head);
      if (queue == nullptr || !record_piece(*queue, head, read_of(*queue))) return invalid_message(head);
      publish(*queue);
      return {};
    }
    case WireKind::kHead:
    case WireKind::kTransferHead:
      return take_head(head);
    default:
      return invalid_message(head);
  }
}

bool RemoteQueues::record_piece(RemoteQueue &queue, const WireHead &head, uint64_t read) {
  if (!queue.in.record_piece(head.number, read, range_of(head), (head.extra & kLastPiece) != 0)) return false;
  queue.head_of(head.number) = head;
  return true;
}

void RemoteQueues::publish(RemoteFifo &queue) {
  Segment &segment = context_.segment;
  const uint64_t first = queue.next;
  for (; queue.in.has_arrived(queue.next); queue.in.publish(queue.next++)) {
    if (queue.lined != nullptr) continue;
    const WireHead &head = queue.head_of(queue.next);
    const uint64_t slot = context_.fifos.slot_of(queue.next);
    const bool in_line = (head.extra & kInLine) != 0;
    (in_line ? queue.end.lines[slot].tag : queue.end.tags[slot]) = head.tag;
    segment.show(in_line ? queue.end.lines[slot].number : *queue.end.tail, queue.next + 1);
  }
  if (queue.next == first) return;
  for (uint32_t r = 0; r < queue.end.nreaders; ++r) segment.ring(context_.placement.nccl_rank[queue.end.readers[r]]);
}

void RemoteQueues::publish(RemoteTransfers &queue) {
  const uint64_t first = queue.next;
  for (; queue.in.has_arrived(queue.next); queue.in.publish(queue.next++)) {
    queue.shared->signatures[queue.next % TransferLayout::kSlots] = queue.head_of(queue.next).tag;
    context_.segment.show(queue.shared->tail, queue.next + 1);
  }
  if (queue.next != first) context_.segment.ring(queue.to);
}

RemoteQueues::RemoteQueue *RemoteQueues::find_outgoing(uint32_t object, bool transfer) {
  const std::map<uint32_t, size_t> &indices = transfer ? transfer_out_index_ : out_index_;
  const auto entry = indices.find(object);
  if (entry == indices.end()) return nullptr;
  return transfer ? static_cast<RemoteQueue *>(&transfers_out_[entry->second]) : &out_[entry->second];
}

Status RemoteQueues::take_head(const WireHead &head) {
  const bool transfer = kind_of(head) == WireKind::kTransferHead;
  RemoteQueue *const queue = find_outgoing(head.object, transfer);
  if (queue == nullptr || !queue->out.read(head.number, queue->next)) return invalid_message(head);
  Segment &segment = context_.segment;
  if (transfer) {
    const auto &target = static_cast<const RemoteTransfers &>(*queue);
    segment.show(target.shared->head, head.number);
    segment.ring(target.from);
    return {};
  }
  const auto &target = static_cast<const RemoteFifo &>(*queue);
  for (uint32_t r = 0; r < target.end.nreaders; ++r) segment.show(target.end.head(r), head.number);
  segment.ring(context_.placement.nccl_rank[target.end.source]);
  return {};
}

}  // namespace collc
