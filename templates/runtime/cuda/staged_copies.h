// All_gathers and broadcasts by copy engines between ranks that decide separately: in several processes, or in threads of one.
//
// The GPU of each rank copies a piece of its data into a slot, from where the GPUs of the others copy it into their outputs. So
// no rank needs to know the buffers of another rank, and they may be of any kind of memory. Slots are in two places, the lanes
// of a call. Each lane carries a range of every block: one in the memory of the rank's GPU, the other in pinned host memory
// next to it, over PCIe, for GPUs that do not reach each other and for the path class pcie. The lanes do not depend on each
// other.
//
// Streams wait for words in pinned host memory (copy_words.h), which other streams write after their copies. No GPU writes into
// the memory of another GPU, so nothing has to be flushed there: the write of a word is a memory barrier for earlier work on
// its stream.
//
// The steps of each rank are in one order: piece by piece, lane by lane, filling before reading. A step waits only for a step
// that is earlier in that order on another rank. So the steps of all ranks never wait for each other in a circle, however far
// one rank is ahead, and also if all streams of a rank share a hardware queue.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "collc/collective_traits.h"
#include "cuda/copy_words.h"
#include "cuda/device.h"
#include "plan/call.h"

namespace collc::cuda {

// Returns true for collectives that copy engines can do: they have a program and add nothing up.
inline bool is_copied(Collective collective) { return traits(collective).uses_trees && !traits(collective).reduces; }

// The part of a broadcast that a rank passes on to the others.
struct BroadcastPart {
  BroadcastPart(uint64_t whole, uint64_t nranks, uint64_t part) {
    const uint64_t size = (whole / nranks / kAlignment + 1) * kAlignment;
    at = std::min(whole, part * size);
    bytes = std::min(whole, at + size) - at;
  }
  static constexpr uint64_t kAlignment = 128;
  uint64_t at, bytes;
};

// A part of each block of a call.
struct CopyRange {
  uint64_t at = 0, bytes = 0;
};

// The streams of a lane's steps of a call. With two streams, slots are filled while others are read: PCIe carries both at once.
struct LaneStreams {
  Stream fill = nullptr, read = nullptr;
};

// The memory of a lane.
struct StagedMemory {
  char *words;  // CopyWords, for the host
  Address words_at;  // the same, for the GPU of the rank
  std::vector<Address> staging;  // the slots of all ranks, for the GPU
  uint64_t piece_bytes;  // of a slot
};

// One lane of one rank. Owner: RankCopies. Threads: the one that makes calls; the watcher calls release() and find_late(). No
// call blocks.
class StagedCopies {
 public:
  static constexpr uint64_t most_piece(CopyLane lane) {  // bytes of a slot
    return lane == CopyLane::kGpu ? 16 << 20 : 4 << 20;
  }

  StagedCopies(const Device *device, CopyLane lane, uint32_t rank, StagedMemory memory);
  ~StagedCopies();
  StagedCopies(const StagedCopies &) = delete;
  StagedCopies &operator=(const StagedCopies &) = delete;
  // Before any rank uses it.
  Status begin();

  // Of the rank's own: copies between GPUs on the legacy stream wait for all work of both GPUs, which may wait for them.
  const LaneStreams &streams() const { return streams_; }
  uint64_t pieces(const CopyRange &range) const { return (range.bytes + memory_.piece_bytes - 1) / memory_.piece_bytes; }
  // Puts a piece of a call's range on streams.
  Status put_piece(const Call &call, const CopyRange &range, uint64_t number, const LaneStreams &streams);

  // Called by the watcher: streams wait for no rank from now on.
  void release();
  // Called by the watcher: returns the rank that a stream has waited for longer than `seconds`, in words; empty: none.
  std::string find_late(int64_t now_ms, double seconds);

 private:
  enum class Which : uint32_t { kAll = 1, kOne, kOthers };
  // Other ranks: all, one, or all but one.
  struct Peers {
    Which which;
    uint32_t rank = 0;
  };
  struct Piece;
  class Steps;
  std::vector<uint32_t> list(const Peers &peers) const;
  CopyWord &word(CopyStep step, uint32_t slot, uint32_t peer) const;
  void fill(const Piece &piece, Steps *steps) const;
  void read_all(const Piece &piece, Steps *steps) const;
  void read_from_root(const Piece &piece, Steps *steps) const;
  void hand_on(const Piece &piece, Steps *steps) const;
  std::string find_late(CopyStep step, int64_t now_ms, double seconds);

  const Device *device_;
  CopyLane lane_;
  uint32_t rank_, nranks_;
  CopyWords layout_;
  StagedMemory memory_;
  LaneStreams streams_;
  bool released_ = false;  // of the watcher
  int64_t seen_ms_[2] = {};  // likewise: when it saw first what a stream waits for
};

}  // namespace collc::cuda
