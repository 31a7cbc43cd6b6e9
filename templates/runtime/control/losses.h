// Classes of links that have failed: from which call on nobody uses them.
//
// Who learns of a failure, between calls or amid one, says so here, and the call is decided at once, without waiting for
// anybody: the one behind the newest that any rank has begun. A rank shows that it begins a call, and then looks whether a class
// is lost; who loses one shows that, and then looks which calls have begun (sequentially consistent, all of it). So either the
// rank sees the loss, or its call is seen, and all ranks leave the class out of the same calls. Between the two steps whoever
// looks may take the second one: nobody waits for a rank that has died there.
//
// A class that is lost stays lost for the communicator's life. Where no other class is left, it is used all the same, and the call
// fails with its name.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/lines.h"
#include "collc/step_program.h"

namespace collc {

// In shared memory, zero at first.
struct alignas(kLine) LossWords {
  std::atomic<uint64_t> from[kClasses];  // 0: it works; kDeciding, or the first call without it
};
struct alignas(kLine) BegunCall {
  std::atomic<uint64_t> number;  // the newest that the rank has begun of those that several classes share
};

class Losses {
 public:
  Losses() = default;
  Losses(LossWords *words, BegunCall *begun, uint32_t nranks, uint32_t rank)
      : words_(words), begun_(begun), nranks_(nranks), rank_(rank) {}

  // From which call on nobody uses the class; 0: it is lost already.
  uint64_t lose(uint32_t part) {
    uint64_t works = 0;
    if (words_ == nullptr || !words_->from[part].compare_exchange_strong(works, kDeciding, std::memory_order_seq_cst)) return 0;
    return decide(part);
  }

  // A bit for each class that the call, which begins now, does without. Calls in their order, each once.
  uint32_t begin(uint64_t call) {
    begun_[rank_].number.store(call, std::memory_order_seq_cst);
    uint32_t lost = 0;
    for (uint32_t c = 0; c < kClasses; ++c) {
      uint64_t from = words_->from[c].load(std::memory_order_seq_cst);
      if (from == 0) continue;
      if (from == kDeciding) from = decide(c);
      if (call >= from) lost |= 1u << c;
    }
    return lost;
  }

  // A bit for each class that has failed, whatever calls still use it.
  uint32_t lost() const {
    uint32_t lost = 0;
    for (uint32_t c = 0; c < kClasses; ++c)
      if (words_ != nullptr && words_->from[c].load(std::memory_order_acquire) != 0) lost |= 1u << c;
    return lost;
  }

 private:
  static constexpr uint64_t kDeciding = ~uint64_t{0};

  uint64_t decide(uint32_t part) {
    uint64_t newest = 0;
    for (uint32_t r = 0; r < nranks_; ++r) {
      const uint64_t begun = begun_[r].number.load(std::memory_order_seq_cst);
      newest = begun > newest ? begun : newest;
    }
    uint64_t open = kDeciding;
    return words_->from[part].compare_exchange_strong(open, newest + 1, std::memory_order_seq_cst) ? newest + 1 : open;
  }

  LossWords *words_ = nullptr;
  BegunCall *begun_ = nullptr;
  uint32_t nranks_ = 0, rank_ = 0;
};

}  // namespace collc
