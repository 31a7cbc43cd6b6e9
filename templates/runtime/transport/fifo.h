// FIFOs in shared memory: their layout, and one rank's send or recv connector (`end`) of each.
//
// Every FIFO has
// - a line that its writer stores: the number of chunks written so far (tail), and a tag for every slot: the signature of the
//   call that wrote the slot, with marks in its last bits (transports.h). A reader that lags sees several chunks with one
//   load.
// - a line per slot: the address of the chunk, or, for a chunk that is small enough, the chunk itself with its number (from
//   1) and its tag, in place of all other fields; the reader then has one cache miss.
// - a line per reader: the number of chunks that it has read so far (head), the costs of reading slots and large broadcasts
//   (slot_ways.h, pull_ways.h), and whether the writer is far away.
// - a probe line, which serves to measure the distance (distance.h).
// - slots * slot_bytes * places bytes of data, which the writer stores once and all readers read. A slot uses its places in
//   turn, so that the writer does not store into lines that are still in the reader's cache: taking them away one by one
//   takes longer than finding them in the cache that the cores share (measured on an AMD EPYC). If ranks share cores, slots
//   exchange their places instead (slot_order.h).
//
// Counters have 64 bits, never wrap, and continue from call to call, so nothing is ever reset.
//
// Memory order. A writer stores the chunk and its tag first and then the number (of the slot's line, or the tail) with
// Segment::show(), which is at least a release store; a reader loads the number first. The loads of numbers and heads are
// sequentially consistent, because a rank that falls asleep looks at them once more after it has stored that it sleeps
// (control/segment.h). Slots, their lines and the tags are plain memory: the number orders the reads, and the head orders the
// next write.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/lines.h"
#include "collc/tables.h"
#include "transport/distance.h"
#include "transport/neighbors.h"
#include "transport/pull_ways.h"
#include "transport/slot_order.h"
#include "transport/slot_ways.h"

namespace collc {

// Offsets in the target's shared memory.
struct FifoPlace {
  bool here;  // a rank of this machine writes or reads the FIFO; if not, the other members mean nothing
  uint64_t tail;
  uint64_t lines;
  uint64_t heads;  // the line of reader 0
  uint64_t probe;
  uint64_t slots;
  uint64_t rooms;
};

// A chunk that is not copied into a slot.
struct ChunkAddress {
  uint64_t address;  // in the process of its writer
  uint64_t bytes;
};

struct alignas(kLine) SlotLine {
  static constexpr uint32_t kData = kLine - 2 * sizeof(uint64_t);
  std::atomic<uint64_t> number;
  uint64_t tag;
  union {  // ordered by the number, like the data in the slot
    // A chunk for another machine has only `bytes` here, its data are in the slot. A chunk in an exchanged place (kMoved in
    // transports.h) has only the number of the place, in `address`.
    ChunkAddress chunk;
    unsigned char data[kData];
  };
};
static_assert(sizeof(SlotLine) == kLine, "a line per slot");

// Selects FIFOs of an allocation and the size of their slots.
struct FifoChoice {
  bool only_halves = false;  // only FIFOs whose other end is on another machine
  uint32_t slot_bytes = 0;  // 0: the allocation's slot_bytes
  const std::vector<bool> *among = nullptr;  // indexed by FIFO; null: all FIFOs
  uint32_t room_bytes = 0;  // bytes of the staging area of each slot, which only proxy threads use; 0: none
  uint32_t places = 1;  // places per slot; a power of two
};

// Lays out those FIFOs of an allocation that a rank of this machine writes or reads, from offset `begin` on.
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

// The line that a reader stores.
struct alignas(kLine) HeadLine {
  std::atomic<uint64_t> count;  // head: the number of chunks that the reader has read
  std::atomic<uint32_t> cost[2];  // cost of reading chunks from slots, by SlotWay, in the unit of learned_cost()
  // The reader has copied all earlier chunks that come by address and are to be reduced into its own memory.
  std::atomic<uint64_t> fetched;
  std::atomic<uint32_t> is_far;  // 1: the writer is far away
  PullCosts pulls;
};
static_assert(sizeof(HeadLine) == kLine, "a line per reader");

// One rank's end of a FIFO. Only the thread that runs the rank uses it.
struct FifoEnd {
  std::atomic<uint64_t> *tail = nullptr;
  uint64_t *tags = nullptr;  // tag of each slot; on the tail's line, ordered by the tail
  SlotLine *lines = nullptr;
  HeadLine *heads = nullptr;  // lines of all readers; for a reader, its own line
  std::atomic<uint64_t> *probe = nullptr;
  char *slots = nullptr;
  char *rooms = nullptr;  // staging areas of the slots; null if the layout has none
  const uint32_t *readers = nullptr;
  uint32_t nreaders = 0;
  // How the readers reach the writer's memory, the least of them all; for a reader, how it does itself.
  Reach reach = Reach::kSlots;
  bool only_copied = false;  // of a writer: the kernel copies for every reader
  bool direct = false;  // of a writer: it has sent addresses that readers may still read
  uint32_t source = 0;  // plan rank of the writer
  uint64_t position = 0;  // chunks of all earlier calls
  uint64_t before = 0;  // chunks of all calls before the last call that used the FIFO
  uint64_t last = 0;  // number of the last call that used the FIFO; 0: none
  uint64_t probed = 0;  // of a reader: chunks up to this number (from 1) have been considered for the probe
  uint64_t large = 0;  // chunks so far that are large enough for the probe (distance.h)
  uint64_t fetched = 0;  // of a reader: chunks that the kernel has copied, in this call or earlier ones
  SlotWays ways;  // of a writer: the choice between SlotWays
  SlotOrder order;  // of a writer: the exchanged places
  WayRun run;  // of a reader: the run of chunks that came the same way
  char *scratch = nullptr;  // of a reader: memory for a chunk that the kernel copies and that is then reduced
  uint64_t seen = 0;  // the peer's counter at the last look: the tail for a reader, the least head for a writer
  std::shared_ptr<PullWays> pull_ways;  // of a writer; null until it has sent a large broadcast
  bool pulled = false;  // of a writer: the kernel copies the broadcast that is being sent
  PullReader pull_reader;  // of a reader

  std::atomic<uint64_t> &head(uint32_t reader) const { return heads[reader].count; }
  void end_call(uint64_t number, uint64_t chunks) {
    before = position;
    last = number;
    position += chunks;
  }
  // For a writer: returns whether all chunks of calls before the last one have been read. A rank that has sent data of a call
  // has ended all calls before it, so no head needs to be loaded; a load would take the line out of the reader's cache.
  // `heard`, by plan rank, is the last call whose data have come from the rank.
  bool was_read_before(const std::vector<uint64_t> &heard) const {
    if (reach == Reach::kWire || last == 0) return false;
    return std::all_of(readers, readers + nreaders, [&](uint32_t reader) { return heard[reader] >= last; });
  }
  // Returns the head of the reader that is furthest behind; `slowest` receives its plan rank.
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
  // Returns the number of chunks, sent by address to be reduced, that the writer may overwrite: every reader has copied or
  // read them. `slowest` receives the plan rank of the reader that is furthest behind.
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
  // `plan_rank` is kNobody for ends that belong to no rank; they have the head lines of all readers.
  static constexpr uint32_t kNobody = UINT32_MAX;
  Fifos(const Tables &tables, const Allocation &allocation, const FifoLayout &layout, char *memory, uint32_t plan_rank);
  // Sets how the readers of each FIFO reach the writer's memory. If `sums`, chunks that the kernel copies may be reduced, and
  // memory for them is allocated.
  Status connect(const Neighbors &neighbors, const std::vector<uint32_t> &nccl_rank, uint32_t plan_rank, bool sums);
  // Lets slots exchange their places (slot_order.h).
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
  // Returns the slot of chunk `number`. Avoids a division, which takes as long as loading a line from another core.
  uint64_t slot_of(uint64_t number) const { return slot_mask_ != 0 ? number & slot_mask_ : number % slots_; }
  // Returns the offset of chunk `number` in the data of its FIFO. The chunk has `bytes` bytes, and the places of its slot
  // have this size, rounded up to a power of two. Chunks below kLeastTurning always use the same place. If the writer
  // prefetches their lines, the slots are shifted by kApart against each other, so that a cache can hold these lines of all
  // slots at once.
  uint64_t offset_of(uint64_t number, uint64_t slot, uint64_t bytes) const {
    const uint64_t begin = slot * slot_room_;
    if (!turns_) return begin;
    if (bytes < kLeastTurning) return asks_ahead(bytes) ? begin + slot * kApart : begin;
    const auto place_shift = static_cast<uint32_t>(64 - __builtin_clzll(bytes - 1));
    return begin + ((number >> slot_shift_ << place_shift) & (slot_room_ - 1));
  }
  // Returns whether the writer of a chunk of this size prefetches the lines of its next chunk, which are in the cache of the
  // reader.
  bool asks_ahead(uint64_t bytes) const { return bytes <= ahead_bytes_; }
  // Chunks up to this many bytes travel in their slot's line; equal at both ends.
  uint32_t line_bytes() const { return line_bytes_; }
  void leave_lines_out() { line_bytes_ = 0; }

 private:
  std::vector<FifoEnd> ends_;
  std::shared_ptr<char> scratch_;  // FifoEnd::scratch of all ends
  uint32_t slots_ = 0;
  uint32_t slot_mask_ = 0;  // 0: slots_ is not a power of two
  uint32_t slot_bytes_ = 0;
  uint64_t slot_room_ = 0;  // bytes of a slot, all its places included
  uint32_t slot_shift_ = 0;
  bool turns_ = false;
  bool moves_ = false;
  uint32_t line_bytes_ = SlotLine::kData;
  uint64_t ahead_bytes_ = 0;
  static constexpr uint64_t kLeastTurning = 8 << 10;
  static constexpr uint64_t kMostAhead = 1 << 10;  // bytes of lines that a core can have in flight at a time
  static constexpr uint64_t kApart = kMostAhead + kLine;
};

}  // namespace collc
