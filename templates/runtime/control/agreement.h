// How the ranks of a communicator agree on the first call of a change, so that all of them apply it in the same calls.
//
// One rank, the leader, proposes a change. Each rank answers with the first call that can have the change, and starts no call
// from that one on until the outcome is known. The largest answer is the outcome. One refusal keeps the old state. A rank
// that will not wait any longer refuses for all. The outcome of a proposal is one word, which changes once, from open to a
// call or a refusal, so all ranks read the same outcome. A rank settles a proposal when it comes to the call of the outcome,
// and the leader proposes nothing else before all ranks have settled, so no rank has more than one change ahead of it.
//
// Only the ranks themselves answer, and only before they begin a call. A rank that is about to begin call c answers c + 1,
// because another rank may be in call c already, without an answer, and need this rank to end it. A rank that waits has begun
// all calls before, so every rank that has not answered comes to its next call, and answers there.
//
// This file has the words in shared memory and the operations on them. The users wait, and decide what ends a wait; no
// function here blocks. The thread that runs a rank uses its object. Answers and outcome are sequentially consistent, so that
// the last of several ranks that answer at the same time sees all answers.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/lines.h"

namespace collc {

// Words in shared memory, initially zero.
struct alignas(kLine) Motion {
  std::atomic<uint64_t> number;   // of the latest proposal, counted from 1
  std::atomic<uint64_t> subject;  // the proposed change, packed by the user
  std::atomic<uint64_t> outcome;  // a Word with the proposal's number, and kOpen, kRefused or the call
};
struct alignas(kLine) Ballot {
  std::atomic<uint64_t> answer;   // a Word
  std::atomic<uint64_t> settled;  // number of the last proposal that the rank has settled
};

class Agreement {
 public:
  enum class Turn : uint32_t {
    kGo,      // the call may start; nothing changes
    kWait,    // the call may not start before the outcome is known
    kChange,  // the call may start, and the change holds from it on
    kKept,    // the call may start; the proposal was refused
  };
  static constexpr uint32_t kCallBits = 40;
  // These take the place of a call; calls count from 1.
  static constexpr uint64_t kOpen = 0, kRefused = (uint64_t{1} << kCallBits) - 1;

  Agreement(Motion *motion, Ballot *ballots, uint32_t nranks, uint32_t rank)
      : motion_(motion), ballots_(ballots), nranks_(nranks), rank_(rank) {}

  // For the leader: returns whether all ranks have settled the previous proposal.
  bool may_propose() const {
    const uint64_t last = motion_->number.load(std::memory_order_relaxed);
    for (uint32_t r = 0; r < nranks_; ++r)
      if (ballots_[r].settled.load(std::memory_order_acquire) != last) return false;
    return true;
  }
  void propose(uint64_t subject) {
    const uint64_t number = motion_->number.load(std::memory_order_relaxed) + 1;
    motion_->subject.store(subject, std::memory_order_relaxed);
    motion_->outcome.store(pack(number, kOpen), std::memory_order_relaxed);
    motion_->number.store(number, std::memory_order_seq_cst);
  }

  // Returns whether a proposal waits for this rank's answer.
  bool asks() const { return motion_->number.load(std::memory_order_seq_cst) != answered_; }
  uint64_t subject() const { return motion_->subject.load(std::memory_order_relaxed); }
  // Answers. `call` is the first call that can have the change here; this rank starts no call from this one on until at()
  // allows it. Returns true if this answer has decided the outcome.
  bool answer(uint64_t call) {
    answered_ = motion_->number.load(std::memory_order_relaxed);
    from_ = call;
    ballots_[rank_].answer.store(pack(answered_, call), std::memory_order_seq_cst);
    return count();
  }
  // Refuses, also after an answer. Returns true if this has decided the outcome.
  bool refuse() {
    answered_ = motion_->number.load(std::memory_order_relaxed);
    return decide(kRefused);
  }

  // Call before each call, in their order. Returns kChange or kKept once for each proposal, and settles it with that.
  Turn at(uint64_t call) {
    if (settled_ == answered_) return Turn::kGo;
    const uint64_t from = motion_->outcome.load(std::memory_order_seq_cst) & kRefused;
    if (from == kOpen) return call < from_ ? Turn::kGo : Turn::kWait;
    if (from != kRefused && call < from) return Turn::kGo;
    settled_ = answered_;
    ballots_[rank_].settled.store(settled_, std::memory_order_release);
    return from == kRefused ? Turn::kKept : Turn::kChange;
  }

  // Returns the ranks that have not answered the latest proposal.
  std::vector<uint32_t> find_silent() const {
    std::vector<uint32_t> silent;
    const uint64_t number = motion_->number.load(std::memory_order_relaxed);
    for (uint32_t r = 0; r < nranks_; ++r) {
      const uint64_t answer = ballots_[r].answer.load(std::memory_order_seq_cst);
      if (answer != pack(number, answer & kRefused)) silent.push_back(r);
    }
    return silent;
  }

  // Returns whether this rank has answered and the outcome is open.
  bool is_open() const {
    return settled_ != answered_ && (motion_->outcome.load(std::memory_order_seq_cst) & kRefused) == kOpen;
  }

 private:
  // A Word: the proposal's number (its low 24 bits) above a call (40 bits).
  static uint64_t pack(uint64_t number, uint64_t call) { return number << kCallBits | call; }

  bool decide(uint64_t call) {
    uint64_t open = pack(answered_, kOpen);
    return motion_->outcome.compare_exchange_strong(open, pack(answered_, call), std::memory_order_seq_cst);
  }

  // Decides the outcome if all ranks have answered. Of several ranks that answer at the same time, at least one sees all
  // answers.
  bool count() {
    uint64_t last = 0;
    for (uint32_t r = 0; r < nranks_; ++r) {
      const uint64_t answer = ballots_[r].answer.load(std::memory_order_seq_cst);
      const uint64_t call = answer & kRefused;
      if (answer != pack(answered_, call)) return false;
      last = call > last ? call : last;
    }
    return decide(last);
  }

  Motion *motion_;
  Ballot *ballots_;
  uint32_t nranks_, rank_;
  uint64_t answered_ = 0, settled_ = 0;  // numbers of proposals
  uint64_t from_ = 0;  // this rank's answer
};

}  // namespace collc
