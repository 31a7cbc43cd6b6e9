// The two halves of what one rank sends to others on another machine: chunks go from memory here to the same place there, and
// the counts of those that were read come back.
//
// Both halves look like a FIFO, or a queue of transfers, between ranks of one machine: a writer fills its half and never
// learns that the reader is elsewhere, and the same at the other end. The courier here reads what the writer shows; the one
// there shows it to the readers. A chunk stays in its slot until the readers have counted it, so nothing is copied here.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "transport/fifo.h"
#include "transport/transfers.h"
#include "wire/messages.h"

namespace collc {

// What the lanes of a communicator have in common.
struct LaneContext {
  Segment &segment;
  const Placement &placement;
  const Fifos &fifos;  // ends of nobody
  const TransferLayout &transfers;

  TransferQueue &queue(uint32_t from, uint32_t to) const {
    return *reinterpret_cast<TransferQueue *>(segment.memory() + transfers.queue(from, to));
  }
};

// All lanes between this machine and one other.
class Lanes {
 public:
  Lanes(const LaneContext &context, uint32_t machine);

  // Queues what was read here since the last time, then chunks, as long as the connection holds little. True if there was
  // anything.
  bool send(WireConnection &connection);
  // True if nothing that a rank here has written waits to be queued.
  bool is_drained(uint32_t rank) const;

  // For messages of the first four kinds, which the peer may send only as the tables say.
  Status place(const WireHead &head, char **body);
  Status take(const WireHead &head);

 private:
  struct FifoLane {
    uint32_t fifo;
    FifoEnd end;
    uint64_t passed = 0;    // chunks that went over the wire
    uint64_t placed = 0;    // for readers here: chunks that have a place
    uint64_t returned = 0;  // for readers here: chunks that the writer knows to be read
  };
  struct TransferLane {
    uint32_t object;
    uint32_t from, to;
    TransferQueue *queue;
    uint64_t passed = 0, placed = 0, returned = 0;
  };

  bool return_heads(WireConnection &connection);
  bool send_chunk(WireConnection &connection, FifoLane &lane);
  bool send_transfer(WireConnection &connection, TransferLane &lane);
  bool has_chunk(const FifoLane &lane, bool *in_line) const;
  Status check_chunk(const WireHead &head, FifoLane **lane);
  Status check_transfer(const WireHead &head, TransferLane **lane);
  Status wrong(const WireHead &head) const;
  void take_head(const WireHead &head, FifoLane &lane);
  char *slot_of(const TransferLane &lane, uint64_t number) const {
    return lane.queue->slots + number % TransferLayout::kSlots * context_.transfers.slot_bytes();
  }

  LaneContext context_;
  std::vector<FifoLane> out_, in_;                // written here; read here
  std::map<uint32_t, size_t> out_place_, in_place_;  // by FIFO
  std::vector<TransferLane> transfers_out_, transfers_in_;
  std::map<uint32_t, size_t> transfer_out_place_, transfer_in_place_;  // by object
  size_t turn_ = 0;  // of the lanes that send chunks
};

}  // namespace collc
