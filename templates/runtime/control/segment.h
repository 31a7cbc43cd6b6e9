// The shared memory of one communicator: a control page, the lines of the ranks, and memory of the target.
//
// It is a memfd, so it has no entry in /dev/shm and does not outlive the last process. Every process maps it once, however
// many of the ranks it runs, and closes the descriptor once no other process needs it, so a communicator does not depend on
// the process's use of descriptors. liveness.h detects ranks that have died.
//
// Memory order. There are two cases: each of two ranks stores a word and then loads the word of the other rank, and at least
// one of them must see the other's store: a rank that publishes a chunk and a rank that falls asleep; a rank that begins to
// read a buffer and a rank that aborts the communicator and may then free the buffer. On x86 this needs a full fence between
// store and load on both sides, which costs as much as loading a line from another core. But one side of each case runs for
// every chunk, and the other one is rare. So the frequent side only prevents the compiler from reordering (show), and the
// rare side makes all running threads of the registered processes execute a fence, with Linux's membarrier (settle). If any
// rank's process may not use membarrier, and on other CPUs, the frequent side stores sequentially consistently instead.
//
// Any thread may call the functions. settle(), abort() and ring() may make a system call but do not wait for other ranks.
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

// True if a sequentially consistent store costs more than a release store.
#if defined(__x86_64__)
constexpr bool kFencesCost = true;
#else
constexpr bool kFencesCost = false;
#endif

enum class RankState : uint32_t { kAbsent = 0, kAttached = 1, kLeft = 2 };

// The rank whose process has the connections to other machines.
struct ProxyPage {
  LivenessMark liveness;  // of that process, while it has the connections
  std::atomic<uint32_t> rank;
};

// How far a rank has come with its calls; its log contains the calls themselves.
struct CallCounts {
  std::atomic<uint64_t> newest;    // number of the last call that the rank has noted
  std::atomic<uint64_t> finished;  // host target: number of the last call whose work for other ranks is done
  std::atomic<uint32_t> finalized;  // 1: `newest` is the rank's last call
};

// Published by a sleeping rank, so that others can detect ranks that wait only for each other (deadlock.h).
struct Asleep {
  static constexpr uint32_t kMostRanks = 256;
  std::atomic<uint64_t> turn;  // grows with every change; odd: the other members are valid
  std::atomic<uint32_t> bell;  // the rank whose bell wakes this rank
  std::atomic<uint32_t> heard;  // the count of that bell when this rank last looked without success
  std::atomic<uint64_t> waits[kMostRanks / 64];  // a bit per rank: only one of these ranks can let this one proceed
  std::atomic<uint64_t> count, what;             // the call that it waits in, as in a CallRecord
};

// Small messages of a rank to the other ranks of an existing communicator, in a ring of buffers. Ranks exchange messages in
// sets (for a split). A rank that reads late in one set delays only the ranks of this set, and may miss messages that they
// post meanwhile in smaller sets.
struct Mail {
  static constexpr size_t kBytes = kMostMail;
  static constexpr uint64_t kKept = kKeptMail + 1;  // one more, because the next message may be half written
  std::atomic<uint64_t> number;  // number of messages posted so far
  unsigned char data[kKept][kBytes];
};

// The shared state of one rank. Ranks that wake this one write its first cache line; the rank itself writes the others.
struct alignas(2 * kLine) RankLine {
  std::atomic<uint32_t> bell;      // counts wakes; a futex
  std::atomic<uint32_t> sleeping;  // 0: awake; else 1 + the rank whose bell wakes this one
  std::atomic<uint32_t> state;     // RankState
  // Not 0 while the rank reads or writes memory of another rank.
  alignas(kLine) std::atomic<uint32_t> reading;
  std::atomic<uint32_t> core;  // the core on which the rank was last seen
  alignas(kLine) CallCounts calls;
  alignas(kLine) LivenessMark liveness;
  alignas(kLine) Asleep asleep;
  alignas(kLine) Mail mail;
};

// When a call of several path classes began on a rank, and when each class had done its part (control/balancer.h).
struct alignas(kLine) TimedCall {
  static constexpr uint64_t kKept = 8;  // calls of each rank
  std::atomic<uint64_t> number;         // 0 while the other members change
  std::atomic<uint64_t> begun;          // ns; 0: the call was not timed
  std::atomic<uint64_t> ended[kClasses];
};

struct ControlPage {
  uint64_t magic;
  uint64_t bytes;
  uint32_t nranks;
  uint32_t calls;  // records of each rank's log
  std::atomic<uint32_t> attached;
  std::atomic<uint32_t> unfenced;  // number of ranks whose process has no membarrier; constant once all ranks are attached
  uint64_t board;  // offset of the board; readers from outside know `magic` and the place of this member
  // 0; 1 once a rank has failed; 2 once the code, the rank and the text are complete. Set once, by the first rank that fails.
  alignas(kLine) std::atomic<uint32_t> aborted;
  std::atomic<uint32_t> sleepers;  // number of ranks whose `sleeping` is set or about to be set; 0: no rank needs to be checked
  int32_t abort_code;
  uint32_t abort_rank;
  char abort_text[400];
  alignas(kLine) ProxyPage proxy;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "shared memory needs atomics without locks");

class Segment final : public Control {
 public:
  // Equal on all ranks: the number of ranks, the calls in each rank's log (a power of two), and the bytes of the target's
  // memory.
  struct Size {
    uint32_t nranks;
    uint32_t calls;
    uint64_t bytes;
  };
  // Creates the memory and maps it. Fails with ncclSystemError if it cannot be reserved.
  static Status create(const Size &size, std::shared_ptr<Segment> *made);
  // Maps the memory behind `fd`. Closes `fd` in any case.
  static Status adopt(int fd, const Size &size, std::shared_ptr<Segment> *made);

  ~Segment() override;
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;

  uint32_t nranks() const override { return control_->nranks; }
  // The descriptor, on the rank that created the memory; -1 after hide().
  int fd() const { return fd_; }
  void hide();
  ControlPage &control() { return *control_; }
  RankLine &line(uint32_t rank) { return lines_[rank]; }
  // The memory of the target: zeroed, page-aligned.
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

  // Declares that the process of `rank` has the connections to other machines, until release_proxy().
  Status acquire_proxy(uint32_t rank);
  void release_proxy();
  // Returns whether the process that had the connections has ended, and the connections with it. `rank` receives its rank.
  bool proxy_has_ended(uint32_t *rank) const {
    *rank = control_->proxy.rank.load(std::memory_order_relaxed);
    return has_ended(control_->proxy.liveness);
  }

  CallLog log(uint32_t rank) const { return CallLog(calls_ + uint64_t{rank} * control_->calls, control_->calls); }
  // Records a call of `rank` for the others; `log` is the rank's log.
  void note_call(uint32_t rank, CallLog &log, uint64_t number, uint64_t history, uint64_t count, uint64_t what) {
    log.note(number, history, count, what);
    lines_[rank].calls.newest.store(number, std::memory_order_release);
  }
  uint64_t newest_call(uint32_t rank) const override { return lines_[rank].calls.newest.load(std::memory_order_acquire); }
  void finalize(uint32_t rank) override { lines_[rank].calls.finalized.store(1, std::memory_order_release); }
  bool is_finalized(uint32_t rank) const override { return lines_[rank].calls.finalized.load(std::memory_order_acquire) != 0; }
  Status compare(uint32_t rank, uint32_t peer) const override;

  void abort(const Status &status, uint32_t rank) override;
  // Together with show(line.reading): of a rank that shows that it reads and then calls this, and a rank that aborts, at
  // least one sees the other.
  bool aborted() const override { return control_->aborted.load(std::memory_order_seq_cst) != 0; }
  Status abort_status(uint32_t rank) const override;
  Status with_differing_calls(const Status &failure) const override;

  uint64_t post(uint32_t rank, const Bytes &message) override;
  uint64_t newest_mail(uint32_t rank) const override { return lines_[rank].mail.number.load(std::memory_order_acquire); }
  Status take(uint32_t rank, uint64_t number, Bytes *message) const override;

  // The frequent side: publishes a word that others may sleep or wait for. At least a release store. The compiler moves no
  // later load before it; the fence that settle() forces keeps the CPU from doing so.
  template <class T>
  void show(std::atomic<T> &word, T value) {
    if (kFencesCost && control_->unfenced.load(std::memory_order_relaxed) == 0) {
      word.store(value, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      word.store(value, std::memory_order_seq_cst);
    }
  }
  // The rare side: call it between a sequentially consistent store and the loads of words that others show().
  void settle();

  // Declares that `rank` sleeps and is woken by the bell of rank `bell`. The caller must then call settle() and look once
  // more for the event that it waits for.
  void set_sleeping(uint32_t rank, uint32_t bell) {
    control_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    lines_[rank].sleeping.store(1 + bell, std::memory_order_seq_cst);
  }
  void set_awake(uint32_t rank) {
    lines_[rank].sleeping.store(0, std::memory_order_seq_cst);
    control_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Returns false if no rank sleeps. Call it after publishing the words that sleepers may wait for.
  bool has_sleepers() const { return control_->sleepers.load(std::memory_order_seq_cst) != 0; }
  // Wakes `rank` if it sleeps. Call it after publishing the words that the rank may wait for.
  void ring(uint32_t rank) {
    if (!has_sleepers()) return;
    const uint32_t sleeping = lines_[rank].sleeping.load(std::memory_order_seq_cst);
    if (sleeping != 0) wake(sleeping - 1);
  }

 private:
  Segment(int fd, char *base, uint64_t bytes) : fd_(fd), base_(base), bytes_(bytes) {}
  static Status map(int fd, const Size &size, std::shared_ptr<Segment> *made);
  void describe();  // fills in the header of the board
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

// Sleeps while `word` has `value`, until a wake or the end of the time. May return early.
void futex_wait(std::atomic<uint32_t> &word, uint32_t value, uint64_t microseconds);

}  // namespace collc
