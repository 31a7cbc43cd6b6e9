// FIFOs in shared memory: where they lie, and one rank's ends of them.
//
// Every FIFO has
//   a line written by its source: chunks written so far (tail), and for every slot a tag: the signature of the call that
//   wrote it, whose last bits say whether the slot holds an address, and which way data came into it. A lagging reader sees several chunks with one load;
//   a line per slot: the chunk's address; or, instead of all that, the chunk itself with its number (from 1) and tag if it
//   is that small: then a reader misses its cache once;
//   a line per reader: chunks that it has read so far (head), what reading slots and large broadcasts cost it (slot_ways.h,
//   pull_ways.h), and whether the writer is far away;
//   a line that the writer stores in so that this can be found out (distance.h);
//   slots * slot_bytes * places of data, written once and read by all readers. A slot has several places that it uses in turn, so that
//   a writer does not store in lines that its reader still has in its cache: it would have to take them away one by one, which takes
//   longer than finding them in the cache that the cores share (measured on an AMD EPYC). Where ranks share cores, slots
//   exchange their places instead (slot_order.h).
// Numbers never wrap (64 bits) and go on from call to call, so nothing is ever reset.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/lines.h"
#include "collc/tables.h"
#include "transport/distance.h"
#include "transport/neighbours.h"
#include "transport/pull_ways.h"
#include "transport/slot_order.h"
#include "transport/slot_ways.h"

namespace collc {

// Offsets in the target's shared memory.
struct FifoPlace {
  bool here;  // on this machine; else the rest means nothing
  uint64_t tail;
  uint64_t lines;
  uint64_t heads;  // of reader 0
  uint64_t probe;
  uint64_t slots;
  uint64_t rooms;
};

// A chunk that stays where it stands.
struct ChunkAddress {
  uint64_t address;  // in its writer's process
  uint64_t bytes;
};

struct alignas(kLine) SlotLine {
  static constexpr uint32_t kData = kLine - 2 * sizeof(uint64_t);
  std::atomic<uint64_t> number;
  uint64_t tag;
  union {  // ordered by the number, as is the slot
    // Of what goes over a wire only the bytes, which are in the slot; of what has moved (transports.h) only the part, as address.
    ChunkAddress chunk;
    unsigned char data[kData];
  };
};
static_assert(sizeof(SlotLine) == kLine, "a line per slot");

// Which FIFOs of an allocation, and with what slots.
struct FifoChoice {
  bool only_halves = false;  // those that another machine reads or writes too
  uint32_t slot_bytes = 0;  // 0: as the allocation says
  const std::vector<bool> *among = nullptr;  // by FIFO; null: all
  uint32_t room_bytes = 0;  // beside each slot, for couriers alone
  uint32_t places = 1;  // of each slot; a power of two
};

// Where the FIFOs of an allocation lie, from offset `begin` on: those that a rank of this machine writes or reads.
class FifoLayout {
 public:
  FifoLayout(const Tables &tables, const Placement &placement, uint64_t begin, const FifoChoice &choice = {});
  const FifoPlace &operator[](uint32_t fifo) const { return places_[fifo]; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint32_t room_bytes() const { return room_bytes_; }
  uint32_t places() const { return places_of_slot_; }
  uint64_t end() const { return end_; }

 private:
  std::vector<FifoPlace> places_;
  uint32_t slot_bytes_, room_bytes_, places_of_slot_;
  uint64_t end_ = 0;
};

// What a reader writes.
struct alignas(kLine) HeadLine {
  std::atomic<uint64_t> count;  // of chunks that it has read
  std::atomic<uint32_t> cost[2];  // of reading what went into slots, by SlotWay, as learned_cost has it
  std::atomic<uint64_t> fetched;  // all chunks before this one that come by address and are reduced stand in its own memory
  std::atomic<uint32_t> is_far;  // from the writer
  PullCosts pulls;
};
static_assert(sizeof(HeadLine) == kLine, "a line per reader");

// A rank's end of a FIFO.
struct FifoEnd {
  std::atomic<uint64_t> *tail = nullptr;
  uint64_t *tags = nullptr;  // per slot; on the tail's line, ordered by it
  SlotLine *lines = nullptr;
  HeadLine *heads = nullptr;  // of the readers; for a reader its own
  std::atomic<uint64_t> *probe = nullptr;
  char *slots = nullptr;
  char *rooms = nullptr;  // as many; null: the layout has none
  const uint32_t *readers = nullptr;
  uint32_t nreaders = 0;
  Reach reach = Reach::kSlots;  // of all readers into the source's memory; for a reader its own
  bool only_copied = false;  // of a writer: the kernel copies for every reader
  bool direct = false;  // the source has sent addresses that may still be read
  uint32_t source = 0;  // plan rank
  uint64_t position = 0;  // chunks of earlier calls
  uint64_t before = 0;  // of calls earlier than the last one that went over it
  uint64_t last = 0;  // the number of that call; 0: none
  uint64_t probed = 0;  // of a reader: the last chunk that it has counted below, from 1
  uint64_t large = 0;  // chunks so far that are large enough for the probe (distance.h)
  uint64_t fetched = 0;  // chunks that the kernel has copied for a reader, in this call or an earlier one
  SlotWays ways;  // of a writer
  SlotOrder order;  // the same
  WayRun run;  // of a reader
  char *scratch = nullptr;  // the same: room for a chunk that the kernel copies and that is reduced
  uint64_t seen = 0;  // the peer's counter when last looked at: tail for a reader, least head for a writer
  std::shared_ptr<PullWays> pull_ways;  // of a writer that has sent a large broadcast
  bool pulled = false;  // the same: the kernel copies the one that it sends
  PullReader pull_reader;  // of a reader

  std::atomic<uint64_t> &head(uint32_t reader) const { return heads[reader].count; }
  void end_call(uint64_t number, uint64_t chunks) {
    before = position;
    last = number;
    position += chunks;
  }
  // Of a writer: whether all chunks of earlier calls than the last one have been read. A rank that has sent something of a call has
  // ended those before it, so no counter needs a look, which would take its line out of the reader's cache. `heard`: by plan rank,
  // the last call of which something has come from there.
  bool was_read_before(const std::vector<uint64_t> &heard) const {
    if (reach == Reach::kWire || last == 0) return false;
    return std::all_of(readers, readers + nreaders, [&](uint32_t reader) { return heard[reader] >= last; });
  }
  // The counter of the reader that is furthest behind, and which one that is.
  uint64_t least_head(uint32_t *slowest) const {
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < nreaders; ++r) {
      const uint64_t count = head(r).load(std::memory_order_seq_cst);
      if (count >= least) continue;
      least = count;
      *slowest = readers[r];
    }
    return least;
  }
  // How far the writer may overwrite what it has sent by address to be reduced.
  uint64_t least_fetched(uint32_t *slowest) const {
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < nreaders; ++r) {
      const uint64_t count =
          std::max(heads[r].fetched.load(std::memory_order_seq_cst), head(r).load(std::memory_order_seq_cst));
      if (count >= least) continue;
      least = count;
      *slowest = readers[r];
    }
    return least;
  }
};

// The ends of one rank, by FIFO of the allocation.
class Fifos {
 public:
  Fifos() = default;
  // `plan_rank`: kNobody for ends that are no rank's, with the counters of all readers.
  static constexpr uint32_t kNobody = UINT32_MAX;
  Fifos(const Tables &tables, const Allocation &allocation, const FifoLayout &layout, char *memory, uint32_t plan_rank);
  // Settles how far the readers of each FIFO reach. `sums`: what the kernel copies may be reduced, which takes room.
  Status connect(const Neighbours &neighbours, const std::vector<uint32_t> &nccl_rank, uint32_t plan_rank, bool sums);
  // Slots exchange their parts (slot_order.h).
  void let_move() { moves_ = slots_ <= SlotOrder::kMostSlots; }
  bool moves() const { return moves_; }

  bool empty() const { return ends_.empty(); }
  uint32_t count() const { return static_cast<uint32_t>(ends_.size()); }
  FifoEnd &operator[](uint32_t fifo) { return ends_[fifo]; }
  const FifoEnd &operator[](uint32_t fifo) const { return ends_[fifo]; }
  uint32_t slots() const { return slots_; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint64_t slot_room() const { return slot_room_; }
  uint64_t all_slots() const { return slots_ * slot_room_; }  // bytes of a FIFO's data
  // Where chunk `number` of a FIFO goes. A division costs as much as a line of another core.
  uint64_t slot_of(uint64_t number) const { return slot_mask_ != 0 ? number & slot_mask_ : number % slots_; }
  // Where in the data of a FIFO chunk `number`, of so many bytes, goes: the places of its slot are as large as it is. Small ones are
  // best where they always stand; those that are asked for ahead in lines that a cache can hold beside those of the other slots.
  uint64_t offset_of(uint64_t number, uint64_t slot, uint64_t bytes) const {
    const uint64_t begin = slot * slot_room_;
    if (!turns_) return begin;
    if (bytes < kLeastTurning) return asks_ahead(bytes) ? begin + slot * kApart : begin;
    const auto place_shift = static_cast<uint32_t>(64 - __builtin_clzll(bytes - 1));
    return begin + ((number >> slot_shift_ << place_shift) & (slot_room_ - 1));
  }
  // Whether the writer of a chunk of so many bytes asks for the lines of the next one, which stand in the cache of its reader.
  bool asks_ahead(uint64_t bytes) const { return bytes <= ahead_bytes_; }
  // Chunks up to this size travel in their slot's line; the same at both ends.
  uint32_t line_bytes() const { return line_bytes_; }
  void leave_lines_out() { line_bytes_ = 0; }

 private:
  std::vector<FifoEnd> ends_;
  std::shared_ptr<char> scratch_;  // of all ends
  uint32_t slots_ = 0;
  uint32_t slot_mask_ = 0;  // 0: slots_ is no power of two
  uint32_t slot_bytes_ = 0;
  uint64_t slot_room_ = 0;  // bytes of a slot with all its places
  uint32_t slot_shift_ = 0;
  bool turns_ = false;
  bool moves_ = false;
  uint32_t line_bytes_ = SlotLine::kData;
  uint64_t ahead_bytes_ = 0;
  static constexpr uint64_t kLeastTurning = 8 << 10;
  static constexpr uint64_t kMostAhead = 1 << 10;  // a core waits for so many lines at a time
  static constexpr uint64_t kApart = kMostAhead + kLine;
};

}  // namespace collc
