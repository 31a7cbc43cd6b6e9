// What a job shows of itself to `collc status`, which reads the shared memory of a communicator from outside, at any time.
//
// Nothing answers and nothing waits: ranks write with plain stores what they know anyway, and a reader of the same user looks
// at the memory of their processes, stopped or not. The header says where everything lies, so that one reader understands
// libraries of several versions; collc/status/board.py is that reader. A field that changes its meaning changes the magic.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/lines.h"
#include "control/call_log.h"

namespace collc {

constexpr uint64_t kBoardMagic = 0x3164726f62636c63;  // "clcbord1"

// Where things lie, in bytes from the begin of the segment; `state` to `in_what` from that of a rank's line.
struct BoardHeader {
  uint64_t magic;
  uint64_t bytes;  // of this header
  uint64_t nranks, calls, transfers;
  uint64_t aborted, abort_code, abort_rank, abort_text, abort_text_bytes;
  uint64_t lines, line_bytes;
  uint64_t state, owner, newest, finished, turn, waits, waits_words, in_count, in_what;
  uint64_t ranks, rank_bytes;
  uint64_t call_records, transfer_records, record_bytes;
  uint64_t ways;
  uint64_t id;         // of the communicator, the same on all machines
  uint64_t allocation;  // of the library
  std::atomic<uint64_t> named;  // 1 once the id, the allocation and the library are here
  char library[256];            // its path, as the process that made the segment loaded it
};

// What a rank says of itself, once.
struct alignas(kLine) BoardRank {
  std::atomic<uint64_t> told;  // 1 once the rest is here; 0: it is on another machine, or not there yet
  int32_t process;             // its number, in its own container
  uint32_t plan_rank;
  uint64_t made_ns, made_ticks;               // both clocks, when it was told
  std::atomic<uint64_t> seen_ns, seen_ticks;  // and when it last looked for reasons to stop waiting
  uint64_t tells_ends;                        // 1: its call records say when calls end
  char gpu[64];
  char host[64];
};
static_assert(sizeof(BoardRank) == 192, "as collc/status/board.py reads it");
static_assert(sizeof(CallRecord) == 64, "as collc/status/board.py reads it");

class Board {
 public:
  // The last calls of ncclSend and ncclRecv that each rank keeps.
  static constexpr uint32_t kTransfers = 16;

  Board() = default;
  Board(char *at, uint32_t nranks) : at_(at), nranks_(nranks) {}
  static uint64_t bytes(uint32_t nranks) { return ways_at(nranks) + uint64_t{nranks} * nranks; }

  static constexpr uint64_t ranks_at() { return kPage; }
  static uint64_t transfers_at(uint32_t nranks) { return ranks_at() + uint64_t{nranks} * sizeof(BoardRank); }
  static uint64_t ways_at(uint32_t nranks) { return transfers_at(nranks) + uint64_t{nranks} * kTransfers * sizeof(CallRecord); }

  BoardHeader &header() const { return *reinterpret_cast<BoardHeader *>(at_); }
  BoardRank &rank(uint32_t rank) const { return reinterpret_cast<BoardRank *>(at_ + ranks_at())[rank]; }
  CallLog transfers(uint32_t rank) const {
    return CallLog(reinterpret_cast<CallRecord *>(at_ + transfers_at(nranks_)) + uint64_t{rank} * kTransfers, kTransfers);
  }
  // How `reader` gets what `writer` has: 0 not told, else 1 + Reach (transport/neighbours.h).
  unsigned char &way(uint32_t reader, uint32_t writer) const {
    return reinterpret_cast<unsigned char *>(at_ + ways_at(nranks_))[uint64_t{reader} * nranks_ + writer];
  }
  // Lets readers compare the two clocks.
  void see(uint32_t rank) const {
    BoardRank &mine = this->rank(rank);
    mine.seen_ticks.store(now_ticks(), std::memory_order_relaxed);
    mine.seen_ns.store(now_ns(), std::memory_order_relaxed);
  }

 private:
  char *at_ = nullptr;
  uint32_t nranks_ = 0;
};

}  // namespace collc
