// The two halves of what one rank sends to others on another machine: chunks go from memory here to the same place there, and
// the counts of those that were read come back.
//
// Both halves look like a FIFO, or a queue of transfers, between ranks of one machine: a writer fills its half and never
// learns that the reader is elsewhere, and the same at the other end. The courier here reads what the writer shows; the one
// there shows it to the readers. A chunk stays in its slot until the readers have counted it, so nothing is copied here
// but chunks of lines, whose data are taken out of them (lined_slots.h).
//
// Where a connection has rails, each chunk but small ones goes over them in pieces, and readers are shown chunks in their order
// whatever the order in which the pieces come.
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

// What the lanes of a communicator have in common.
struct LaneContext {
  Segment &segment;
  const Placement &placement;
  const Fifos &fifos;  // ends of nobody
  const TransferLayout &transfers;
  const Fifos &lined;  // the same, of halves with lines; empty: there are none
  // Where the machines are ranks of one server: the halves of each, in the same segment. Null: they are machines.
  const std::vector<Fifos> *ranks = nullptr;

  TransferQueue &queue(uint32_t from, uint32_t to) const {
    return *reinterpret_cast<TransferQueue *>(segment.memory() + transfers.queue(from, to));
  }
};

// All lanes between this machine and one other.
class Lanes {
 public:
  Lanes(const LaneContext &context, uint32_t machine);

  // Queues what was read here since the last time, then chunks, as long as the connection holds little. True if there was
  // anything, and if a kernel has begun a chunk of lines or left more of it.
  bool send(WireConnection &connection);
  // True if nothing that a rank here has written waits to be queued, or is on its way over a rail.
  bool is_drained(uint32_t rank, const Rails *rails) const;

  // Between ranks of one server, when nothing comes any more: writers here learn from memory what was read. True if one has
  // written what no reader will see.
  bool is_stranded() const;

  // For messages about chunks, which the peer may send only as the tables say.
  static bool takes(WireKind kind) { return kind <= WireKind::kTransferHead; }
  Status place(const WireHead &head, char **body);
  Status take(const WireHead &head);

 private:
  // What lanes of both kinds have.
  struct Lane {
    Lane(uint32_t object_, uint32_t slots) : object(object_), out(slots), in(slots), heads(slots) {}
    uint32_t object;  // as messages name it
    uint64_t passed = 0;  // written here: chunks that were looked at; read here: that readers were shown
    uint64_t returned = 0;  // for readers here: chunks that the writer knows to be read
    OutWindow out;
    InWindow in;
    std::vector<WireHead> heads;  // by slot, of what has come last
    WireHead &head_of(uint64_t number) { return heads[number % heads.size()]; }
  };
  struct FifoLane : Lane {
    FifoLane(uint32_t object_, FifoEnd end_, uint32_t slots) : Lane(object_, slots), end(end_) {}
    FifoEnd end;
    std::unique_ptr<LinedSlots> lined;  // null: slots have data alone
  };
  struct TransferLane : Lane {
    TransferLane(uint32_t object_, uint32_t from_, uint32_t to_, const LaneContext &context)
        : Lane(object_, TransferLayout::kSlots), from(from_), to(to_), queue(&context.queue(from_, to_)) {}
    uint32_t from, to;
    TransferQueue *queue;
  };

  void add_fifos(uint32_t machine, const Fifos &fifos, uint32_t first, bool lined);
  bool return_heads(WireConnection &connection);
  static bool return_head(WireConnection &connection, Lane &lane, WireKind kind, uint64_t read);
  bool take_chunk(WireConnection &connection, FifoLane &lane, bool *moved);
  bool take_transfer(WireConnection &connection, TransferLane &lane);
  static void pass(WireConnection &connection, Lane &lane, const WireHead &head, const void *body);
  bool send_waiting(Rails &rails);
  WireHead chunk_head(const FifoLane &lane, uint64_t number) const;
  WireHead transfer_head(const TransferLane &lane, uint64_t number) const;
  bool has_chunk(const FifoLane &lane, bool *in_line) const;
  static bool has_arrived(const Lane &lane, const Rails *rails);
  FifoLane *fifo_read_here(const WireHead &head);
  TransferLane *transfer_read_here(const WireHead &head);
  Status take_head(const WireHead &head);
  Lane *written_here(uint32_t object, bool transfer);
  static bool arrive(Lane &lane, const WireHead &head, uint64_t read);
  void publish(FifoLane &lane);
  void publish(TransferLane &lane);
  Status wrong(const WireHead &head) const;
  uint64_t read_of(const FifoLane &lane) const {
    uint32_t slowest = 0;
    return lane.end.least_head(&slowest);
  }
  static uint64_t read_of(const TransferLane &lane) { return lane.queue->head.load(std::memory_order_acquire); }
  char *slot_of(const FifoLane &lane, uint64_t number) const {
    if (lane.lined != nullptr) return lane.lined->data(number);
    return lane.end.slots + context_.fifos.slot_of(number) * context_.fifos.slot_bytes();
  }
  char *slot_of(const TransferLane &lane, uint64_t number) const {
    return lane.queue->slots + number % TransferLayout::kSlots * context_.transfers.slot_bytes();
  }

  LaneContext context_;
  uint32_t machine_;
  std::vector<FifoLane> out_, in_;  // written here; read here
  std::map<uint32_t, size_t> out_place_, in_place_;  // by object
  std::vector<TransferLane> transfers_out_, transfers_in_;
  std::map<uint32_t, size_t> transfer_out_place_, transfer_in_place_;  // by object
  size_t turn_ = 0, rail_turn_ = 0;  // of the lanes that send chunks
};

}  // namespace collc
