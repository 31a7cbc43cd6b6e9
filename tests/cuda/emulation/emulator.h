// Runs CUDA kernels on a CPU to test their protocol, not their speed.
//
// Each CUDA thread is a fiber. A seeded scheduler runs the fibers of all blocks of all virtual GPUs one at a time. It switches
// inside every verb, also between the 4-byte pieces of a 16-byte access. Memory that kernels share comes from one pool. A shadow
// records for each byte
//   - whether it is allocated and written: an access to another byte is an error;
//   - the last writer and the readers: two accesses without an order by a barrier, a flag or a stream are a race;
//   - the value before the last write: if races are not reported, a read that is not ordered after the write may return that
//     value, as on a GPU with caches and write queues.
// Data with flags (LL, LL128) are read without order. A thread that polls them may see a recent store late. Each 8-byte half of a
// 16-byte store of LL is atomic. The flag of an LL128 line is never visible before its data. A store to such data races with the
// reads that took the data before, but not with reads that found no flag.
// Vector clocks with one entry per block track the order. The clock of a block counts its barriers. A flag store publishes
// everything before the last barrier. An acquire orders the writes behind the flag before its thread, and the next barrier orders
// them before its block. Without a release, a fence precedes the store. A store that frees a slot is ordered only after reads: a
// thread that loads it, by any load, may overwrite the slot, but is not ordered after any write. So a clock has two entries per
// block: for reads and writes, and only for reads.
// Memory outside of the pool, of another process or of the host, is accessible where it was opened; its order is not tracked.
// run() takes all launches at once. A session takes launches one by one, and they are ordered after the launches whose end the
// host had seen.
// Lanes in lockstep: no lane stores before all other lanes of its warp are at a store, at a barrier, or finished. So a lane that
// waits stops its warp, and a lane that waits for its own warp is a deadlock.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace emulation {

using Clock = std::vector<uint32_t>;

constexpr uint32_t kLanes = 8;  // of a warp, so that small blocks have several
constexpr uint32_t kLineBytes = 128;
constexpr uint32_t kLatest = 300;  // switches after which everybody sees a store
constexpr uint32_t kAnyDevice = 0xff;
constexpr uint32_t kMostDevices = 64;
constexpr uint32_t kNoQueue = 0xffffffff;
constexpr uint32_t kOwnShared =
    64;  // static shared memory of a kernel, in bytes, in addition to the dynamic bytes of its launch

struct Block;

// The arguments of a lane in a verb of its warp: `packs` packs of this lane, kLanes packs apart in memory, or a vote.
struct WarpCall {
  enum Kind { kLoad, kStore, kAny } kind;
  char *memory;
  uint64_t flag;
  uint32_t packs;
  char *values;
  bool result;
};

struct Fiber {
  void *stack_pointer = nullptr;
  char *stack = nullptr;
  Block *block = nullptr;
  uint32_t thread = 0;
  uint32_t percent = 100;  // chance to run when picked
  bool runnable = true;  // not at a barrier and not parked
  bool finished = false;
  Clock learned;  // from flag loads since the last barrier; empty: nothing
  Clock seen;  // from flag loads without acquire, until a fence makes it known
  Clock fenced;  // what the last fence puts before flag stores without release
  bool at_barrier = false;
  bool held = false;  // before a store, until its warp has caught up
  // The memory that the last poll loaded, and the number of stores at that time.
  const char *watched = nullptr, *watched_end = nullptr;
  uint64_t looked_at = 0;
  WarpCall *call = nullptr;  // not null while it waits for its warp
};

struct Block {
  uint32_t id = 0;  // of its clock: the same (rank, channel) has the same id in every launch
  uint32_t index = 0;  // within the grid
  uint32_t device = 0;
  uint32_t stream = 0;
  std::function<void()> body;
  std::vector<Fiber> fibers;
  std::vector<char> shared;
  uint32_t arrived = 0, live = 0;
  bool vote = false, result = false;
};

// One launch: blocks [0, grid) with `ids`, in order on its stream. Streams are ranks; a cooperative launch holds several.
struct LaunchRequest {
  uint32_t stream;
  uint32_t threads;
  size_t shared_bytes;
  std::vector<uint32_t> ids;  // per block
  std::vector<uint32_t> devices;  // per block
  std::function<void()> body;
  // Starts when `launches` launches of a stream have ended: (stream, launches).
  std::vector<std::pair<uint32_t, uint32_t>> after = {};
  // Starts when all blocks of a launch of a stream have begun, or more than those: (stream, launches with that one).
  std::vector<std::pair<uint32_t, uint32_t>> behind = {};
  // In a session: the hardware queue, where a waiting launch delays all later launches, and the function to call at the end.
  uint32_t queue = kNoQueue;
  bool holds_queue = false;  // until it has ended: a wait that occupies the queue
  std::function<void()> ended = {};
  uint64_t number = 0;
  Clock known = {};  // to the host when it was made
  Clock at_end = {};  // what is known behind it
};

struct Options {
  uint64_t seed = 0;
  uint32_t resident = 0;  // blocks per device at a time; 0: all
  bool report_races = true;  // else unordered reads may return old values
  bool reaches_all = false;  // a device may touch what was not opened to it
  bool coarse = false;  // accesses to data are not looked at for races, only whether they are allowed outside of the pool
  uint32_t lockstep = 0;  // lanes that are not scheduled one by one (Pascal: a warp); 0: all threads are
  uint64_t abort_at = 0;  // sets *abort_flags after `abort_at` switches; 0: never
  uint32_t patience_ms =
      0;  // real time to wait for flags of others while all fibers wait; 0: advance the virtual clock by seconds
  uint32_t late_stream = 0xffffffff;  // starts only when nobody else can go on, and a second after that
  std::vector<uint32_t *> abort_flags;
};

class Emulator {
 public:
  // `fd` of the pool's memory; -1: nobody else's.
  explicit Emulator(size_t pool_bytes, int fd = -1);
  ~Emulator();
  Emulator(const Emulator &) = delete;
  Emulator &operator=(const Emulator &) = delete;

  // Memory. `allocate` leaves a gap around each piece.
  void reset_memory();
  char *allocate(size_t bytes, size_t align, bool initialized, uint32_t device = kAnyDevice);
  // From now on where something was released, if it has room.
  void take_released(bool takes) { takes_released_ = takes; }
  char *pool() const { return pool_; }
  // Returns a multicast address: its `bytes` stand for the bytes of all `members`. Only multimem verbs may use it.
  char *make_team(const std::vector<char *> &members, size_t bytes);
  // The same for addresses outside of the pool.
  void add_team(const char *at, size_t bytes, const std::vector<char *> &members) { teams_[at] = {bytes, members}; }
  void drop_team(const char *at) { teams_.erase(at); }
  bool is_written(const char *at) const { return !in_pool(at) || shadow_[at - pool_].state >= 2; }
  // The places that a multicast address stands for, in any order.
  std::vector<char *> members(const void *at, size_t bytes);
  // Kernels may not touch it from now on. Its place is not used again while there is another.
  void release(const char *at, size_t bytes);
  // Everything written so far is known to everybody, as after a synchronization of all devices.
  void settle_memory();
  // Memory outside of the pool that kernels on `device` may touch from now on, or no more.
  void open_region(const void *at, size_t bytes, uint32_t device);
  void close_region(const void *at);
  // A link that turns a bit of every 16 bytes that kernels write there.
  void spoil_region(const void *at) { spoilt_.insert(static_cast<const char *>(at)); }
  // Kernels on `device` may touch memory of another device; without any such call all may touch all.
  void set_reach(uint32_t device, uint32_t owner, bool may);

  // Runs all launches to the end. Returns "" or the first thing that went wrong.
  std::string run(const Options &options, uint32_t nblocks, uint32_t nstreams, std::vector<LaunchRequest> launches);
  uint64_t switches() const { return switches_; }
  uint64_t stores() const { return stores_; }

  // A session.
  void begin(const Options &options);
  void reseed(uint64_t seed);
  uint32_t add_block_id();
  uint32_t add_stream();
  void add(LaunchRequest launch);
  // The host has seen everything on a stream end.
  void observe(uint32_t stream) { known_to_host(streams_[stream].clock); }
  // The same for a launch of it that has ended, and those before.
  void observe(uint32_t stream, uint32_t launches) { known_to_host(streams_[stream].launches[launches - 1].at_end); }
  // Runs every thread that can go on once; false: none could.
  bool step();
  // Wakes all waiting fibers, because others may have stored. Returns the number of calls since the last progress.
  uint32_t poll(uint64_t nanoseconds);
  const std::string &failure() const { return failure_; }
  void give_up();  // nothing has happened for too long
  void drop();  // all that runs

  // Verbs, called by fibers.
  Fiber *current() const { return current_; }
  void read(const void *from, void *to, size_t bytes);
  void write(void *to, const void *from, size_t bytes);
  void release(uint64_t *flag, uint64_t value, bool ordered);
  // Relaxed accesses. An acquire of the loaded flag, or a fence, orders them.
  uint64_t relaxed_load(const uint64_t *flag);
  void relaxed_store(uint64_t *flag, uint64_t value);
  void fence();
  void acquire();
  // A relaxed store that says only that the block's reads before its last barrier are over.
  void free_slot(uint64_t *flag, uint64_t value);
  void host_write(uint32_t *word, uint32_t value);
  // Memory operations of streams, on a word in any memory: a store after all earlier work, and a wait until one of the bits is set.
  // Unordered stores to one word are a race. A store of the value that the word already has orders nothing. Only the host writes the
  // upper half of the awaited word. If that half ends a wait, order is lost, and no fault is reported afterwards.
  void tell(uint32_t *word, uint32_t value);
  void await(const uint64_t *word, uint64_t bits);
  // Loads lines in any order, as concurrent loads arrive. Returns a bit for each line whose halves both carry its flag.
  uint32_t ll_read(uint32_t lines, const void *const *from, const uint32_t *flags, uint32_t (*data)[2]);
  void ll_write(void *to, const uint32_t (&data)[2], uint32_t flag);
  bool warp(WarpCall &call);
  bool barrier(bool vote);
  void park();
  void park_since(uint64_t stores);  // until anything is stored
  void pause();
  uint64_t now() const { return clock_ns_ + switches_; }

 private:
  struct Stamp {
    uint16_t block = 0xffff;  // 0xffff: never
    uint16_t thread = 0;
    uint32_t interval = 0;
  };
  struct Shadow {
    Stamp writer;
    Stamp reader, other_reader;  // the last reads from two different threads
    uint8_t old = 0;
    uint8_t state = 0;  // 0 not allocated, 1 not written, 2 written
    uint8_t device = kAnyDevice;
    uint32_t when = 0;  // switches before the last write
  };
  struct Stream {
    std::vector<LaunchRequest> launches;
    size_t next = 0;
    uint32_t running = 0;
    std::vector<std::pair<size_t, uint32_t>> waiting;  // launch, block
    Clock clock;
  };

  bool ordered(const Stamp &stamp) const { return ordered(stamp, *current_); }
  bool ordered(const Stamp &stamp, const Fiber &fiber) const;
  // The same for a read.
  bool is_over(const Stamp &stamp, const Fiber &fiber) const;
  Stamp stamp_of(const Fiber &fiber) const;
  void note_read(Shadow &mark, const Stamp &here);
  void check_write(const Shadow &mark, const Fiber &fiber, const void *at);
  uint64_t read_word(const Fiber &fiber, const char *from, bool *late);
  void write_word(const Fiber &fiber, char *to, uint64_t value);
  void take(const Fiber &fiber, const char *from, size_t bytes);
  void watch(Fiber &fiber, const char *from, const char *end, uint64_t stores);
  bool load_lines(Fiber *const *lanes);
  void store_lines(Fiber *const *lanes);
  void shuffle(uint32_t *order, uint32_t count);
  void known_to_host(const Clock &clock);
  bool in_pool(const void *at) const { return at >= pool_ && at < pool_ + used_; }
  void check_foreign(const char *at, size_t bytes, const char *what);
  void check_coarsely(const void *at, size_t bytes, const char *what);
  // Null for memory outside of the pool, which may be touched.
  Shadow *shadow(const void *at, size_t bytes, const char *what);
  void fail(const std::string &what);
  std::string place(const void *at) const;
  void start_blocks();
  bool may_start(const LaunchRequest &request) const;
  void leave_queue(uint32_t queue) { queues_[queue].erase(queues_[queue].begin()); }
  void start_block(Stream &stream, uint32_t number, size_t launch, uint32_t index);
  void end_fiber();
  void end_block(Block &block);
  void finish_barrier(Block &block);
  void keep_step();
  size_t released_space(size_t bytes, size_t align);
  bool release_warp(Fiber &fiber);
  void wake(const void *at = nullptr);  // null: everybody
  bool late_is_left() const;
  bool round();
  void drop_blocks();
  void loop();
  void switch_to_scheduler();
  static void enter();

  size_t pool_bytes_;
  char *pool_;
  Shadow *shadow_;
  size_t used_ = 0;
  bool takes_released_ = false;
  struct Region {
    const char *end = nullptr;
    std::set<uint32_t> devices;
  };
  bool is_spoilt(const char *at) const;

  std::map<const char *, Region> regions_;
  // The range and the device of the last check_coarsely().
  const char *coarse_begin_ = nullptr, *coarse_end_ = nullptr;
  uint32_t coarse_device_ = 0;
  std::set<const char *> spoilt_;  // begins of regions
  bool reach_is_set_ = false;
  bool reach_[kMostDevices][kMostDevices] = {};
  Clock host_;
  std::map<uint32_t, std::vector<uint64_t>> queues_;  // numbers of the launches that have not begun
  std::map<size_t, size_t> allocated_;  // offset, bytes
  struct Team {
    size_t bytes;
    std::vector<char *> members;
  };
  std::map<const char *, Team> teams_;  // by their multicast address

  Options options_;
  std::mt19937_64 random_;
  uint32_t switch_odds_ = 1;
  std::vector<Clock> clocks_;
  std::vector<uint32_t> intervals_;
  std::vector<Stream> streams_;
  std::vector<uint32_t> resident_;
  std::vector<Block *> blocks_;
  std::vector<Fiber *> fibers_;
  std::vector<char *> stacks_;
  std::unordered_map<const void *, Clock> flags_;
  std::unordered_map<const void *, Clock> freed_;  // what the last free_slot says
  std::map<const char *, Stamp> tellers_;  // who stored last, of words that streams tell
  std::vector<Fiber *> parked_;  // wait for a flag
  Fiber *current_ = nullptr;
  void *scheduler_ = nullptr;
  uint64_t switches_ = 0, clock_ns_ = 0, stores_ = 0;
  uint32_t idle_ = 0;
  std::string failure_;
};

Emulator &emulator();

}  // namespace emulation
