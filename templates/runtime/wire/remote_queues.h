// Remote queues: FIFOs and transfer queues whose writer and readers are on different machines. Each machine has one
// half of such a queue. Chunks go from the half here to the same place in the half there, and the counts of read chunks come
// back.
//
// Each half looks like a FIFO, or a transfer queue, between ranks of one machine: a writer fills its half and does not know
// that the readers are elsewhere, and the readers do not know it either. The proxy thread here reads what the writer has
// published; the proxy thread there publishes it to the readers. A chunk stays in its slot until the readers have counted it,
// so no data are copied here, except for chunks of LL, whose data are taken out of lines (lined_slots.h).
//
// If a connection has rails, each chunk except small ones goes over them in pieces. Readers get chunks in order, whatever the
// order of the pieces.
//
// Only the proxy thread uses these objects, and no function blocks. Memory order: as a rank's (transport/fifo.h): tails and
// heads are loaded with acquire at least, and published with Segment::show().
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "transport/fifo.h"
#include "transport/transfers.h"
#include "wire/lined_slots.h"
#include "wire/messages.h"

namespace collc {

// The data that the remote queues of a communicator share.
struct RemoteContext {
  Segment &segment;
  const Placement &placement;
  const Fifos &fifos;  // ends of no rank
  const TransferLayout &transfers;
  const Fifos &lined;  // ends of no rank, of halves with lines; empty: there are none
  // If the "machines" are ranks of one server: the halves of each rank, which are in this segment, too. Null: they are
  // machines.
  const std::vector<Fifos> *ranks = nullptr;

  TransferQueue &queue(uint32_t from, uint32_t to) const {
    return *reinterpret_cast<TransferQueue *>(segment.memory() + transfers.queue(from, to));
  }
};

// All remote queues between this machine and another one.
class RemoteQueues {
 public:
  RemoteQueues(const RemoteContext &context, uint32_t machine);

  // Sends the counts of chunks that were read here since the last time, and then chunks, until the connection is busy.
  // Returns true if anything was sent, or if a kernel has begun a chunk of lines or stored more of it.
  bool send(WireConnection &connection);
  // Returns whether everything that a local rank has written has been queued and has arrived over its rail.
  bool is_drained(uint32_t rank, const Rails *rails) const;

  // Between ranks of one server, when nothing comes over the connection any more: copies the readers' counts to the writers
  // from memory. Returns whether a writer has written a chunk that no reader will ever get.
  bool is_stranded() const;

  // For messages about chunks. The peer may send only those that agree with the tables; others are errors.
  static bool takes(WireKind kind) { return kind <= WireKind::kTransferHead; }
  Status place(const WireHead &head, char **body);
  Status take(const WireHead &head);

 private:
  // The members that both types of queues have.
  struct RemoteQueue {
    RemoteQueue(uint32_t object_, uint32_t slots) : object(object_), out(slots), in(slots), heads(slots) {}
    uint32_t object;  // the number of the queue in messages
    uint64_t next = 0;  // if written here: chunks that were looked at; if read here: chunks that were published to readers
    uint64_t acknowledged = 0;  // if read here: chunks that the writer knows to be read
    OutWindow out;
    InWindow in;
    std::vector<WireHead> heads;  // by slot: the head of the last message for it
    WireHead &head_of(uint64_t number) { return heads[number % heads.size()]; }
  };
  struct RemoteFifo : RemoteQueue {
    RemoteFifo(uint32_t object_, FifoEnd end_, uint32_t slots) : RemoteQueue(object_, slots), end(end_) {}
    FifoEnd end;
    std::unique_ptr<LinedSlots> lined;  // null: slots have plain data
  };
  struct RemoteTransfers : RemoteQueue {
    RemoteTransfers(uint32_t object_, uint32_t from_, uint32_t to_, const RemoteContext &context)
        : RemoteQueue(object_, TransferLayout::kSlots), from(from_), to(to_), shared(&context.queue(from_, to_)) {}
    uint32_t from, to;
    TransferQueue *shared;
  };

  void add_fifos(uint32_t machine, const Fifos &fifos, uint32_t first, bool lined);
  bool return_heads(WireConnection &connection);
  static bool return_head(WireConnection &connection, RemoteQueue &queue, WireKind kind, uint64_t read);
  bool send_chunk(WireConnection &connection, RemoteFifo &queue, bool *moved);
  bool send_transfer(WireConnection &connection, RemoteTransfers &queue);
  static void send_or_wait(WireConnection &connection, RemoteQueue &queue, const WireHead &head, const void *body);
  bool send_waiting(Rails &rails);
  WireHead chunk_head(const RemoteFifo &queue, uint64_t number) const;
  WireHead transfer_head(const RemoteTransfers &queue, uint64_t number) const;
  bool has_chunk(const RemoteFifo &queue, bool *in_line) const;
  static bool has_arrived(const RemoteQueue &queue, const Rails *rails);
  RemoteFifo *find_incoming_fifo(const WireHead &head);
  RemoteTransfers *find_incoming_transfers(const WireHead &head);
  Status take_head(const WireHead &head);
  RemoteQueue *find_outgoing(uint32_t object, bool transfer);
  static bool record_piece(RemoteQueue &queue, const WireHead &head, uint64_t read);
  void publish(RemoteFifo &queue);
  void publish(RemoteTransfers &queue);
  Status invalid_message(const WireHead &head) const;
  uint64_t read_of(const RemoteFifo &queue) const {
    uint32_t slowest = 0;
    return queue.end.least_head(&slowest);
  }
  static uint64_t read_of(const RemoteTransfers &queue) { return queue.shared->head.load(std::memory_order_acquire); }
  char *slot_of(const RemoteFifo &queue, uint64_t number) const {
    if (queue.lined != nullptr) return queue.lined->data(number);
    return queue.end.slots + context_.fifos.slot_of(number) * context_.fifos.slot_bytes();
  }
  char *slot_of(const RemoteTransfers &queue, uint64_t number) const {
    return queue.shared->slots + number % TransferLayout::kSlots * context_.transfers.slot_bytes();
  }

  RemoteContext context_;
  uint32_t machine_;
  std::vector<RemoteFifo> out_, in_;  // by whether it is written or read on this machine
  std::map<uint32_t, size_t> out_index_, in_index_;  // index by object
  std::vector<RemoteTransfers> transfers_out_, transfers_in_;
  std::map<uint32_t, size_t> transfer_out_index_, transfer_in_index_;  // index by object
  size_t next_queue_ = 0, next_rail_queue_ = 0;  // the next queue that sends a chunk: on the connection, and on rails
};

}  // namespace collc
