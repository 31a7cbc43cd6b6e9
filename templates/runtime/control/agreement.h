// How the ranks of a communicator agree from which call on something holds: all of them use it in the same calls.
//
// One rank, the leader, proposes. Each rank answers with the first call from which it can, and starts nothing from that on
// until the outcome is known. The rank that answers last counts: the largest answer is the call. One "no" keeps what held
// before; so does a rank that will not wait any longer, which says no for all. The outcome is one word that changes once, from
// open, so all ranks read the same. A rank settles a proposal when it comes to the call, and nothing else is proposed before
// all have: at most one change is ahead of any rank.
//
// Nobody but the ranks themselves answers, and only before they begin a call. So a rank answers with the call behind the one
// that it begins: another may be in that call already, has not answered, and needs it to end. Who waits has begun all calls
// before, so every rank that has not answered comes to the next one, and answers there. What lies here is the words and what
// is done to them; waiting, and what ends it, belong to those who use it.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/lines.h"

namespace collc {

// In shared memory, zero at first.
struct alignas(kLine) Motion {
  std::atomic<uint64_t> number;   // of the latest proposal, from 1
  std::atomic<uint64_t> subject;  // what it proposes
  std::atomic<uint64_t> outcome;  // a Word of that number: kOpen, kRefused, or the call
};
struct alignas(kLine) Ballot {
  std::atomic<uint64_t> answer;   // a Word
  std::atomic<uint64_t> settled;  // the number of the last proposal that the rank has settled
};

class Agreement {
 public:
  enum class Turn : uint32_t {
    kGo,      // the call may start, as those before
    kWait,    // not before the outcome is known
    kChange,  // it may start, and from it on the proposal holds
    kKept,    // it may start; the proposal was refused
  };
  static constexpr uint32_t kCallBits = 40;
  static constexpr uint64_t kOpen = 0, kRefused = (uint64_t{1} << kCallBits) - 1;  // in the place of calls, which begin with 1

  Agreement(Motion *motion, Ballot *ballots, uint32_t nranks, uint32_t rank)
      : motion_(motion), ballots_(ballots), nranks_(nranks), rank_(rank) {}

  // Of the leader: whether all ranks have settled what was proposed before.
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

  // Whether a proposal waits for this rank's answer.
  bool asks() const { return motion_->number.load(std::memory_order_seq_cst) != answered_; }
  uint64_t subject() const { return motion_->subject.load(std::memory_order_relaxed); }
  // `call`: the first that it can; from it on it starts nothing until at() says so. True if that has made the outcome.
  bool answer(uint64_t call) {
    answered_ = motion_->number.load(std::memory_order_relaxed);
    from_ = call;
    ballots_[rank_].answer.store(pack(answered_, call), std::memory_order_seq_cst);
    return count();
  }
  // No; also of a rank that has answered. True if that has made the outcome.
  bool refuse() {
    answered_ = motion_->number.load(std::memory_order_relaxed);
    return decide(kRefused);
  }

  // Before each call, in their order. What was answered is settled by kChange and kKept, which come once.
  Turn at(uint64_t call) {
    if (settled_ == answered_) return Turn::kGo;
    const uint64_t from = motion_->outcome.load(std::memory_order_seq_cst) & kRefused;
    if (from == kOpen) return call < from_ ? Turn::kGo : Turn::kWait;
    if (from != kRefused && call < from) return Turn::kGo;
    settled_ = answered_;
    ballots_[rank_].settled.store(settled_, std::memory_order_release);
    return from == kRefused ? Turn::kKept : Turn::kChange;
  }

  // The ranks that have not answered the latest proposal.
  std::vector<uint32_t> find_silent() const {
    std::vector<uint32_t> silent;
    const uint64_t number = motion_->number.load(std::memory_order_relaxed);
    for (uint32_t r = 0; r < nranks_; ++r) {
      const uint64_t answer = ballots_[r].answer.load(std::memory_order_seq_cst);
      if (answer != pack(number, answer & kRefused)) silent.push_back(r);
    }
    return silent;
  }

  // Whether this rank has answered, and the outcome is open.
  bool is_open() const {
    return settled_ != answered_ && (motion_->outcome.load(std::memory_order_seq_cst) & kRefused) == kOpen;
  }

 private:
  // A Word: the proposal's number, as far as it fits, and a call.
  static uint64_t pack(uint64_t number, uint64_t call) { return number << kCallBits | call; }

  bool decide(uint64_t call) {
    uint64_t open = pack(answered_, kOpen);
    return motion_->outcome.compare_exchange_strong(open, pack(answered_, call), std::memory_order_seq_cst);
  }

  // Of ranks that answer at the same time, at least one sees the answers of all.
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
  uint64_t from_ = 0;  // the own answer
};

}  // namespace collc
