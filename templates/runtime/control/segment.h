// The shared memory of one communicator: a control page, one page per rank, and the target's own part.
//
// It is a memfd, so nothing ever appears in /dev/shm and nothing outlives the last process. Every process maps it once,
// whatever number of ranks it holds, and closes its descriptor once no other process needs it: no communicator depends
// on what a process does with its descriptors later. liveness.h detects ranks that have died.
//
// Of two ranks that each store a word and then look at the other's, one must see what the other stored: of one that shows a
// chunk and one that falls asleep; of one that begins to read a buffer and one that breaks the communicator and may free it.
// One side of each pair comes with every chunk, the other is rare. So the frequent side stores as if it were alone (show) and
// the rare one pays for both (settle), with Linux's membarrier. Where a process may not use that, frequent stores are
// sequentially consistent, which on x86 costs as much as a line of another core.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/lines.h"
#include "collc/step_program.h"
#include "control/agreement.h"
#include "control/board.h"
#include "control/call_log.h"
#include "control/control.h"
#include "control/liveness.h"
#include "control/losses.h"
#include "base/status.h"

namespace collc {

// Whether a sequentially consistent store costs more than one that releases.
#if defined(__x86_64__)
constexpr bool kFencesCost = true;
#else
constexpr bool kFencesCost = false;
#endif

enum class RankState : uint32_t { kAbsent = 0, kAttached = 1, kLeft = 2 };

// Which rank's process has the connections with other machines.
struct CourierPage {
  LivenessMark liveness;  // of that process, as long as it has them
  std::atomic<uint32_t> rank;
};

// How far a rank has come with its calls; its log has the calls themselves.
struct CallCounts {
  std::atomic<uint64_t> newest;    // that it has noted
  std::atomic<uint64_t> finished;  // on the host: the last call for which no peer needs this rank any more
  std::atomic<uint32_t> finalized;  // 1: `newest` is the rank's last call
};

// What a sleeping rank waits for, so that others can detect that all wait for each other.
struct Asleep {
  static constexpr uint32_t kMostRanks = 256;
  std::atomic<uint64_t> turn;  // grows with every change; even: the rest means nothing
  std::atomic<uint32_t> bell;  // the rank whose bell wakes it
  std::atomic<uint32_t> heard;  // that bell's count when it last looked for what it waits for
  std::atomic<uint64_t> waits[kMostRanks / 64];  // a bit per rank: only one of these can let it go on
  std::atomic<uint64_t> count, what;             // the call that it waits in, as in a CallRecord
};

// A small message to the other ranks of a communicator that exists, in buffers that take turns. Ranks correspond in sets: one
// that reads late in one set holds back the others of that set alone, and may fall behind what they post in smaller ones.
struct Mail {
  static constexpr size_t kBytes = kMostMail;
  static constexpr uint64_t kKept = kKeptMail + 1;  // the next one may be half written
  std::atomic<uint64_t> number;  // messages posted so far
  unsigned char data[kKept][kBytes];
};

// One rank's part of the control area. Ranks that wake this one write the first line; the rank itself writes the others.
struct alignas(2 * kLine) RankLine {
  std::atomic<uint32_t> bell;      // counts wakes; a futex
  std::atomic<uint32_t> sleeping;  // 0: awake; else 1 + the rank whose bell wakes this one
  std::atomic<uint32_t> state;     // RankState
  // Not 0 while the rank reads or writes the memory of another rank.
  alignas(kLine) std::atomic<uint32_t> reading;
  std::atomic<uint32_t> core;  // that it was last seen on
  alignas(kLine) CallCounts calls;
  alignas(kLine) LivenessMark liveness;
  alignas(kLine) Asleep asleep;
  alignas(kLine) Mail mail;
};

// When a call of several classes of links began at a rank and each class had done its part there (control/balancer.h).
struct alignas(kLine) TimedCall {
  static constexpr uint64_t kKept = 8;  // of each rank
  std::atomic<uint64_t> number;         // 0 while the rest is written
  std::atomic<uint64_t> begun;          // nanoseconds; 0: it was not timed
  std::atomic<uint64_t> ended[kClasses];
};

struct ControlPage {
  uint64_t magic;
  uint64_t bytes;
  uint32_t nranks;
  uint32_t calls;  // that each rank's log holds
  std::atomic<uint32_t> attached;
  std::atomic<uint32_t> unfenced;  // ranks whose process has no membarrier; does not change once all are attached
  uint64_t board;  // where the board lies: readers from outside know the magic and this place
  // Set once, by the rank that fails first; the text is complete when `aborted` is 2.
  alignas(kLine) std::atomic<uint32_t> aborted;
  std::atomic<uint32_t> sleepers;  // ranks whose `sleeping` is set, or soon; if 0, no rank needs to be checked for sleeping
  int32_t abort_code;
  uint32_t abort_rank;
  char abort_text[400];
  alignas(kLine) CourierPage courier;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "shared memory needs atomics without locks");

class Segment final : public Control {
 public:
  // What the ranks agree on: how many they are, how many calls each remembers (a power of two), bytes for the target.
  struct Size {
    uint32_t nranks;
    uint32_t calls;
    uint64_t bytes;
  };
  // ncclSystemError if the memory cannot be reserved.
  static Status create(const Size &size, std::shared_ptr<Segment> *made);
  // Maps the segment behind `fd`, and closes that in any case.
  static Status adopt(int fd, const Size &size, std::shared_ptr<Segment> *made);

  ~Segment() override;
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;

  uint32_t nranks() const override { return control_->nranks; }
  // Of the rank that made it, until hide().
  int fd() const { return fd_; }
  void hide();
  ControlPage &control() { return *control_; }
  RankLine &line(uint32_t rank) { return lines_[rank]; }
  // The target's part: zeroed, page-aligned.
  char *memory() { return memory_; }
  const Board &board() const { return board_; }
  Motion &motion() { return *motion_; }
  Ballot *ballots() { return ballots_; }
  Losses losses(uint32_t rank) { return Losses(losses_, begun_, control_->nranks, rank); }
  TimedCall *timed(uint32_t rank) { return timed_ + rank * TimedCall::kKept; }

  Status attach(uint32_t rank) override;
  void leave(uint32_t rank) override;
  bool has_left(uint32_t rank) const override {
    return lines_[rank].state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::kLeft);
  }
  bool alive(uint32_t rank) const override;

  // Declares that the process of `rank` has the connections with other machines, until release_courier().
  Status acquire_courier(uint32_t rank);
  void release_courier();
  // True if the process that had them has ended, and they with it; `rank`: its.
  bool courier_has_ended(uint32_t *rank) const {
    *rank = control_->courier.rank.load(std::memory_order_relaxed);
    return has_ended(control_->courier.liveness);
  }

  CallLog log(uint32_t rank) const { return CallLog(calls_ + uint64_t{rank} * control_->calls, control_->calls); }
  // Notes a call of `rank` for the others; `log` is its own.
  void note_call(uint32_t rank, CallLog &log, uint64_t number, uint64_t history, uint64_t count, uint64_t what) {
    log.note(number, history, count, what);
    lines_[rank].calls.newest.store(number, std::memory_order_release);
  }
  uint64_t newest_call(uint32_t rank) const override { return lines_[rank].calls.newest.load(std::memory_order_acquire); }
  void finalize(uint32_t rank) override { lines_[rank].calls.finalized.store(1, std::memory_order_release); }
  bool is_finalized(uint32_t rank) const override { return lines_[rank].calls.finalized.load(std::memory_order_acquire) != 0; }
  Status compare(uint32_t rank, uint32_t peer) const override;

  void abort(const Status &status, uint32_t rank) override;
  // Of a rank that shows that it reads, and then looks here, and one that aborts, at least one sees the other.
  bool aborted() const override { return control_->aborted.load(std::memory_order_seq_cst) != 0; }
  Status abort_status(uint32_t rank) const override;

  uint64_t post(uint32_t rank, const Bytes &message) override;
  uint64_t newest_mail(uint32_t rank) const override { return lines_[rank].mail.number.load(std::memory_order_acquire); }
  Status take(uint32_t rank, uint64_t number, Bytes *message) const override;

  // The frequent side: stores what others may sleep or wait for; looks that follow in the program come after it.
  template <class T>
  void show(std::atomic<T> &word, T value) {
    if (kFencesCost && control_->unfenced.load(std::memory_order_relaxed) == 0) {
      word.store(value, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      word.store(value, std::memory_order_seq_cst);
    }
  }
  // The rare side: after a sequentially consistent store, before a look at what others show.
  void settle();

  // Says that `rank` sleeps, to be woken by the bell of rank `bell`. Then settle, and look once more at what it waits for.
  void set_sleeping(uint32_t rank, uint32_t bell) {
    control_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    lines_[rank].sleeping.store(1 + bell, std::memory_order_seq_cst);
  }
  void set_awake(uint32_t rank) {
    lines_[rank].sleeping.store(0, std::memory_order_seq_cst);
    control_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  // False if no rank sleeps. Call after publishing what the sleepers may wait for.
  bool has_sleepers() const { return control_->sleepers.load(std::memory_order_seq_cst) != 0; }
  // Wakes `rank` if it sleeps. Also to be called after that.
  void ring(uint32_t rank) {
    if (!has_sleepers()) return;
    const uint32_t sleeping = lines_[rank].sleeping.load(std::memory_order_seq_cst);
    if (sleeping != 0) wake(sleeping - 1);
  }

 private:
  Segment(int fd, char *base, uint64_t bytes) : fd_(fd), base_(base), bytes_(bytes) {}
  static Status map(int fd, const Size &size, std::shared_ptr<Segment> *made);
  void describe();  // fills in the board's header
  void wake(uint32_t bell);

  int fd_;
  char *base_;
  uint64_t bytes_;
  int process_ = 0;
  ControlPage *control_ = nullptr;
  RankLine *lines_ = nullptr;
  CallRecord *calls_ = nullptr;
  Board board_;
  Motion *motion_ = nullptr;
  Ballot *ballots_ = nullptr;
  TimedCall *timed_ = nullptr;
  LossWords *losses_ = nullptr;
  BegunCall *begun_ = nullptr;
  char *memory_ = nullptr;
};

// Sleeps until `word` differs from `value`, a wake, or the time is over.
void futex_wait(std::atomic<uint32_t> &word, uint32_t value, uint64_t microseconds);

}  // namespace collc
