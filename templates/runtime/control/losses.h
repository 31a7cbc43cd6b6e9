// Path classes whose links have failed, and the first call that no longer uses them.
//
// A rank that learns of a failure, between calls or during one, publishes it here. The first call without the class is
// decided at once, without waiting for other ranks: it is the call after the newest call that any rank has begun. A rank
// stores the number of a call that it begins and then loads the state of the classes. A rank that loses a class stores its
// state and then loads the numbers of begun calls. All these accesses are sequentially consistent, so either the first rank
// sees the loss or the second one sees the call, and all ranks stop using the class with the same call. Any rank that sees a
// loss without its decision completes it, so nobody waits for a rank that has died in between.
//
// A lost class stays lost for the life of the communicator. If a program has no other class, it uses the lost one all the
// same, and the call fails with the name of the class. No function blocks.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/lines.h"
#include "collc/step_program.h"

namespace collc {

// Words in shared memory, initially zero.
struct alignas(kLine) LossWords {
  std::atomic<uint64_t> from[kClasses];  // 0: the class works; kDeciding, or the first call without it
};
struct alignas(kLine) BegunCall {
  std::atomic<uint64_t> number;  // the newest call of a split program that the rank has begun
};

class Losses {
 public:
  Losses() = default;
  Losses(LossWords *words, BegunCall *begun, uint32_t nranks, uint32_t rank)
      : words_(words), begun_(begun), nranks_(nranks), rank_(rank) {}

  // Declares that a class has failed. Returns the first call that no longer uses it; 0 if it was lost already.
  uint64_t lose(uint32_t part) {
    uint64_t works = 0;
    if (words_ == nullptr || !words_->from[part].compare_exchange_strong(works, kDeciding, std::memory_order_seq_cst)) return 0;
    return decide(part);
  }

  // Returns a bit for each class that the call which now begins must not use. Call it once for each call, in their order.
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

  // Returns a bit for each class that has failed, even if calls still use it.
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
