// How streams of ranks that decide apart tell each other how far copies have come (staged_copies.h): words in the segment that
// the ranks of a machine share, pinned for their GPUs. A word is one rank's, which waits until another one has told it and then
// takes it back. So all words are as before when a call is over, and a captured graph holds values that are right whenever it runs.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/lines.h"

namespace collc::cuda {

constexpr uint32_t kStagingSlots = 2;  // of a rank

// A stream waits for either half. Streams write the first one alone: nothing undoes what the host says in the other.
struct alignas(uint64_t) CopyWord {
  std::atomic<uint32_t> told;
  std::atomic<uint32_t> released;  // the communicator has ended
};
constexpr uint64_t kToldOrReleased = 1 | uint64_t{1} << 32;

// What the peer has done with a slot: filled its own, or read this rank's.
enum class CopyStep : uint32_t { kFilled, kRead };

class CopyWords {
 public:
  explicit CopyWords(uint32_t nranks)
      : nranks_(nranks),
        row_bytes_((sizeof(uint64_t) + 2 * kStagingSlots * nranks * sizeof(CopyWord) + kLine - 1) / kLine * kLine) {}

  size_t bytes() const { return whole_pages(nranks_ * row_bytes_); }
  // Where the words of a rank begin: with what its stream waits for, 0: nothing (staged_copies.cpp).
  size_t waits(uint32_t owner) const { return owner * row_bytes_; }
  size_t word(uint32_t owner, CopyStep step, uint32_t slot, uint32_t peer) const {
    const size_t number = (static_cast<size_t>(step) * kStagingSlots + slot) * nranks_ + peer;
    return waits(owner) + sizeof(uint64_t) + number * sizeof(CopyWord);
  }

 private:
  uint32_t nranks_;
  size_t row_bytes_;
};

}  // namespace collc::cuda
