// The shared memory of one communicator: a control page, one page per rank, and the target's own part.
//
// It is a memfd, so nothing ever appears in /dev/shm and nothing outlives the last process. Every process maps it once,
// whatever number of ranks it holds. A rank is alive as long as its process holds a POSIX record lock on byte `rank` of the
// file: the kernel drops the lock when the process ends, however it ends, and a forked child does not inherit it.
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

#include "status.h"

namespace collc {

constexpr size_t kLine = 64;  // a cache line
constexpr size_t kPage = 4096;

// Whether a sequentially consistent store costs more than one that releases.
#if defined(__x86_64__)
constexpr bool kFencesCost = true;
#else
constexpr bool kFencesCost = false;
#endif

enum class RankState : uint32_t { kAbsent = 0, kAttached = 1, kLeft = 2 };

// What a rank is executing, for diagnosis and to catch ranks whose calls differ.
struct CallRecord {
  std::atomic<uint64_t> number;     // of the call that runs; 0 while the record is written
  std::atomic<uint64_t> signature;  // of call `number`
  std::atomic<uint64_t> count;
  std::atomic<uint32_t> collective;
  std::atomic<uint32_t> type;
  std::atomic<uint32_t> op;
  std::atomic<int32_t> root;
  std::atomic<uint64_t> finished;  // on the host: the last call of which this rank owes nobody anything
};

// A small message to the other ranks of a communicator that exists. Two buffers in turn: who posts message n + 2 has seen
// everyone's message n + 1, so everyone has read message n.
struct Mail {
  static constexpr size_t kBytes = 192;
  std::atomic<uint64_t> number;  // messages posted so far
  unsigned char data[2][kBytes];
};

// One rank's part of the control area. The first line is written by whoever wakes the rank, the others by the rank.
struct alignas(2 * kLine) RankLine {
  std::atomic<uint32_t> bell;      // counts wakes; a futex
  std::atomic<uint32_t> sleeping;  // 0: awake; else 1 + the rank whose bell wakes this one
  std::atomic<uint32_t> state;     // RankState
  // Not 0 while the rank reads or writes the memory of another rank.
  alignas(kLine) std::atomic<uint32_t> reading;
  std::atomic<uint32_t> core;  // that it was last seen on
  alignas(kLine) CallRecord call;
  alignas(kLine) Mail mail;
};

struct Control {
  uint64_t magic;
  uint64_t bytes;
  uint32_t nranks;
  std::atomic<uint32_t> attached;
  std::atomic<uint32_t> unfenced;  // ranks whose process has no membarrier; does not change once all are attached
  // Set once, by the rank that fails first; the text is complete when `aborted` is 2.
  alignas(kLine) std::atomic<uint32_t> aborted;
  std::atomic<uint32_t> sleepers;  // ranks whose `sleeping` is set, or soon; where 0, nobody needs a look at each rank
  int32_t abort_code;
  uint32_t abort_rank;
  char abort_text[400];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "shared memory needs atomics without locks");

class Segment {
 public:
  // Makes a segment with `bytes` for the target; ncclSystemError if the memory cannot be reserved.
  static Status create(uint32_t nranks, uint64_t bytes, std::shared_ptr<Segment> *made);
  // Maps the segment behind `fd` and owns the descriptor, also on failure.
  static Status adopt(int fd, uint32_t nranks, uint64_t bytes, std::shared_ptr<Segment> *made);

  ~Segment();
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;

  uint32_t nranks() const { return control_->nranks; }
  int fd() const { return fd_; }
  Control &control() { return *control_; }
  RankLine &line(uint32_t rank) { return lines_[rank]; }
  // The target's part: zeroed, page-aligned.
  char *memory() { return memory_; }

  // Declares `rank` alive in this process.
  Status attach(uint32_t rank);
  // The rank has left; what it wrote stays readable.
  void leave(uint32_t rank);
  // False if the rank's process has died without leaving.
  bool alive(uint32_t rank) const;

  // Ends the communicator for all ranks; the first caller's words stay.
  void abort(const Status &status, uint32_t rank);
  // Of a rank that shows that it reads, and then looks here, and one that aborts, at least one sees the other.
  bool aborted() const { return control_->aborted.load(std::memory_order_seq_cst) != 0; }
  // What the abort says to rank `rank`.
  Status abort_status(uint32_t rank) const;

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
  // False if there is nobody to ring for. Call after what they may wait for was shown.
  bool has_sleepers() const { return control_->sleepers.load(std::memory_order_seq_cst) != 0; }
  // Wakes `rank` if it sleeps. Also to be called after that.
  void ring(uint32_t rank) {
    if (!has_sleepers()) return;
    const uint32_t sleeping = lines_[rank].sleeping.load(std::memory_order_seq_cst);
    if (sleeping != 0) wake(sleeping - 1);
  }

 private:
  Segment(int fd, char *base, uint64_t bytes, uint32_t nranks)
      : fd_(fd), base_(base), bytes_(bytes), local_(new std::atomic<bool>[nranks]()) {}
  static Status map(int fd, uint32_t nranks, uint64_t bytes, std::shared_ptr<Segment> *made);
  void wake(uint32_t bell);

  int fd_;
  char *base_;
  uint64_t bytes_;
  int process_ = 0;
  std::unique_ptr<std::atomic<bool>[]> local_;  // ranks of this process: its own locks are invisible to F_GETLK
  Control *control_ = nullptr;
  RankLine *lines_ = nullptr;
  char *memory_ = nullptr;
};

// Sleeps until `word` differs from `value`, a wake, or the time is over.
void futex_wait(std::atomic<uint32_t> &word, uint32_t value, uint64_t microseconds);

}  // namespace collc
