// How streams of ranks that decide apart tell each other how far copies have come (staged_copies.h): words in the segment that
// the ranks of a machine share, pinned for their GPUs, those of each lane by themselves. A word is one rank's, which waits
// until another one has told it and then takes it back. So all words are as before when a call is over, and a captured graph
// holds values that are right whenever it runs.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/lines.h"

namespace collc::cuda {

// Where slots are, and so the way from GPU to GPU: in the memory of the GPU that fills them, or in that of the host.
enum class CopyLane : uint32_t { kGpu, kHost };
constexpr uint32_t kCopyLanes = 2;
constexpr uint32_t kStagingSlots = 2;  // of a rank in each

// A stream waits for either half. Streams write the first one alone: nothing undoes what the host says in the other.
struct alignas(uint64_t) CopyWord {
  std::atomic<uint32_t> told;
  std::atomic<uint32_t> released;  // the communicator has ended
};
constexpr uint64_t kToldOrReleased = 1 | uint64_t{1} << 32;

// What the peer has done with a slot: filled its own, or read this rank's. Also what a stream waits for: kFilled before it
// reads, or kRead before it fills.
enum class CopyStep : uint32_t { kFilled, kRead };

class CopyWords {
 public:
  CopyWords(uint32_t nranks, CopyLane lane)
      : nranks_(nranks),
        row_bytes_((kHeadBytes + 2 * kStagingSlots * nranks * sizeof(CopyWord) + kLine - 1) / kLine * kLine),
        begin_(static_cast<uint32_t>(lane) * nranks * row_bytes_) {}

  // Of all lanes.
  static size_t bytes(uint32_t nranks) { return whole_pages(kCopyLanes * CopyWords(nranks, CopyLane::kHost).begin_); }
  // Where a rank has what its streams wait for, 0: nothing (staged_copies.cpp).
  size_t waits(uint32_t owner, CopyStep step) const {
    return begin_ + owner * row_bytes_ + static_cast<uint32_t>(step) * sizeof(uint32_t);
  }
  size_t word(uint32_t owner, CopyStep step, uint32_t slot, uint32_t peer) const {
    const size_t number = (static_cast<size_t>(step) * kStagingSlots + slot) * nranks_ + peer;
    return begin_ + owner * row_bytes_ + kHeadBytes + number * sizeof(CopyWord);
  }

 private:
  static constexpr size_t kHeadBytes = sizeof(uint64_t);
  uint32_t nranks_;
  size_t row_bytes_;
  size_t begin_;
};

}  // namespace collc::cuda
