// The state that a job shows to `collc status`, which reads the shared memory of a communicator from outside at any time.
//
// Ranks only store what they know anyway, and wait for no reader. A reader of the same user reads the memory of their
// processes, running or stopped. The header has the offsets of all parts, so that one reader (collc/status/board.py)
// understands libraries of several versions. A field whose meaning changes requires another magic.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/lines.h"
#include "control/call_log.h"

namespace collc {

constexpr uint64_t kBoardMagic = 0x3164726f62636c63;  // "clcbord1"

// Offsets in bytes from the start of the segment; `state` to `in_what` are offsets from the start of a rank's line.
struct BoardHeader {
  uint64_t magic;
  uint64_t bytes;  // size of this header
  uint64_t nranks, calls, transfers;
  uint64_t aborted, abort_code, abort_rank, abort_text, abort_text_bytes;
  uint64_t lines, line_bytes;
  uint64_t state, owner, newest, finished, turn, waits, waits_words, in_count, in_what;
  uint64_t ranks, rank_bytes;
  uint64_t call_records, transfer_records, record_bytes;
  uint64_t ways;
  uint64_t id;         // identifies the communicator, equal on all machines
  uint64_t allocation;  // index of the allocation in the library
  std::atomic<uint64_t> named;  // 1 once the id, the allocation and the library are set (release store)
  char library[256];            // path of the library, as the process that created the segment loaded it
};

// The facts that a rank publishes once, and two clocks that it updates.
struct alignas(kLine) BoardRank {
  // 1 once the other members are set (release store); 0: the rank is on another machine, or has not come yet.
  std::atomic<uint64_t> told;
  int32_t process;             // process number, in the rank's container
  uint32_t plan_rank;
  uint64_t made_ns, made_ticks;               // readings of both clocks at that time
  std::atomic<uint64_t> seen_ns, seen_ticks;  // readings of both clocks when the rank last looked for reasons to stop waiting
  uint64_t tells_ends;  // 1: the rank's call records say when calls end
  char gpu[64];
  char host[64];
};
static_assert(sizeof(BoardRank) == 192, "as collc/status/board.py reads it");
static_assert(sizeof(CallRecord) == 64, "as collc/status/board.py reads it");

class Board {
 public:
  // Number of calls of ncclSend and ncclRecv that are kept for each rank.
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
  // How `reader` reads the data of `writer`: 0 if unknown, else 1 + Reach (transport/neighbors.h).
  unsigned char &way(uint32_t reader, uint32_t writer) const {
    return reinterpret_cast<unsigned char *>(at_ + ways_at(nranks_))[uint64_t{reader} * nranks_ + writer];
  }
  // Stores readings of both clocks; readers compute the unit of ticks from them.
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
