// The words by which streams of ranks that decide separately report the progress of copies (staged_copies.h). They are in the
// segment that the ranks of a machine share, pinned for their GPUs, with separate words for each lane. A word belongs to one
// rank, which waits until another rank has set it and then resets it. So all words have their old values when a call is over,
// and the values in a captured graph are right whenever it runs.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/lines.h"

namespace collc::cuda {

// The place of slots, and so the path from GPU to GPU: the memory of the GPU that fills them, or host memory.
enum class CopyLane : uint32_t { kGpu, kHost };
constexpr uint32_t kCopyLanes = 2;
constexpr uint32_t kStagingSlots = 2;  // of a rank in each

// A stream waits for either half. Streams write only the first half, so nothing undoes the host's value in the other.
struct alignas(uint64_t) CopyWord {
  std::atomic<uint32_t> told;
  std::atomic<uint32_t> released;  // the communicator has ended
};
constexpr uint64_t kToldOrReleased = 1 | uint64_t{1} << 32;

// A step of the peer: it has filled its slot, or read this rank's slot. A stream waits for kFilled before it reads, and for
// kRead before it fills.
enum class CopyStep : uint32_t { kFilled, kRead };

class CopyWords {
 public:
  CopyWords(uint32_t nranks, CopyLane lane)
      : nranks_(nranks),
        row_bytes_((kHeadBytes + 2 * kStagingSlots * nranks * sizeof(CopyWord) + kLine - 1) / kLine * kLine),
        begin_(static_cast<uint32_t>(lane) * nranks * row_bytes_) {}

  // Returns the bytes for all lanes.
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
