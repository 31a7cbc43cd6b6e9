#include "emulator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kGap = 256;
constexpr uint32_t kFakeSeconds = 64;  // how often time may jump when all fibers wait, before that is a deadlock

void *map(size_t bytes, int fd = -1) {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) {
    std::perror("emulator: mmap");
    std::abort();
  }
  return at;
}

void join(Clock &into, const Clock &from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

constexpr uintptr_t kPage = 4096;

// Entries of a block in clocks.
constexpr size_t all_of(size_t block) { return 2 * block; }
constexpr size_t reads_of(size_t block) { return 2 * block + 1; }
uint32_t entry(const Clock &clock, size_t at) { return at < clock.size() ? clock[at] : 0; }

}  // namespace

// Switching stacks: callee-saved registers on the old stack, its pointer stored, the new one's restored. ucontext, which
// asks the kernel for the signal mask each time, is twenty times slower.
#if defined(__x86_64__)
extern "C" void emulation_switch(void **save, void *load);
asm(R"(
.text
.globl emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");

static void *prepare(char *stack, void (*entry)()) {
  // Aligned as if `entry` had been called.
  void **top = reinterpret_cast<void **>(stack + kStackBytes - 72);
  *top = nullptr;
  *--top = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}
#else
static void emulation_switch(void **save, void *load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t *>(load));
}
static void *prepare(char *stack, void (*entry)()) {
  auto *context = reinterpret_cast<ucontext_t *>(stack);
  getcontext(context);
  context->uc_stack.ss_sp = stack + sizeof(ucontext_t);
  context->uc_stack.ss_size = kStackBytes - sizeof(ucontext_t);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#endif

Emulator::Emulator(size_t pool_bytes, int fd)
    : pool_bytes_(pool_bytes),
      pool_(static_cast<char *>(map(pool_bytes, fd))),
      shadow_(static_cast<Shadow *>(map(pool_bytes * sizeof(Shadow)))) {}

Emulator::~Emulator() {
  munmap(pool_, pool_bytes_);
  munmap(shadow_, pool_bytes_ * sizeof(Shadow));
  for (char *stack : stacks_) munmap(stack, kStackBytes);
}

void Emulator::reset_memory() {
  std::memset(pool_, 0, used_);
  std::fill(shadow_, shadow_ + used_, Shadow{});
  used_ = 0;
  allocated_.clear();
  teams_.clear();
  flags_.clear();
  freed_.clear();
}

char *Emulator::allocate(size_t bytes, size_t align, bool initialized, uint32_t device) {
  size_t at = (used_ + kGap + align - 1) / align * align;
  if (takes_released_ || at + bytes + kGap > pool_bytes_) at = released_space(bytes, align);
  const size_t begin = std::min(at, used_), end = at + bytes + kGap;
  std::fill(shadow_ + begin, shadow_ + end, Shadow{});
  for (size_t i = at; i < at + bytes; ++i) {
    shadow_[i].state = initialized ? 2 : 1;
    shadow_[i].device = static_cast<uint8_t>(device);
  }
  allocated_[at] = bytes;
  used_ = std::max(used_, end);
  return pool_ + at;
}

char *Emulator::make_team(const std::vector<char *> &members, size_t bytes) {
  char *at = allocate(bytes, 4096, false);
  for (size_t i = 0; i < bytes; ++i) shadow_[at - pool_ + i] = Shadow{};  // no memory
  teams_[at] = {bytes, members};
  return at;
}

std::vector<char *> Emulator::members(const void *at, size_t bytes) {
  const char *byte = static_cast<const char *>(at);
  auto team = teams_.upper_bound(byte);
  if (team == teams_.begin()) fail("no multicast address is used like one by " + place(at));
  --team;
  const size_t offset = static_cast<size_t>(byte - team->first);
  if (offset + bytes > team->second.bytes || offset % bytes != 0) fail("beside a multicast address by " + place(at));
  std::vector<char *> found = team->second.members;
  for (char *&member : found) member += offset;
  std::shuffle(found.begin(), found.end(), random_);
  return found;
}

// Only when there is no fresh memory left, or it is asked for: else who uses what was released is found out.
size_t Emulator::released_space(size_t bytes, size_t align) {
  size_t end = 0;
  std::vector<std::pair<size_t, size_t>> taken(allocated_.begin(), allocated_.end());
  taken.emplace_back(pool_bytes_, 0);
  for (const auto &[next, size] : taken) {
    const size_t at = (end + kGap + align - 1) / align * align;
    if (at + bytes + kGap <= next) {
      for (auto *flags : {&flags_, &freed_})
        for (auto flag = flags->begin(); flag != flags->end();) {
          const char *where = static_cast<const char *>(flag->first);
          flag = where >= pool_ + at && where < pool_ + at + bytes ? flags->erase(flag) : std::next(flag);
        }
      return at;
    }
    end = next + size;
  }
  std::fprintf(stderr, "emulator: out of memory\n");
  std::abort();
}

void Emulator::release(const char *at, size_t bytes) {
  Shadow *const first = shadow_ + (at - pool_), *const end = first + bytes;
  std::fill(first, end, Shadow{});
  allocated_.erase(static_cast<size_t>(at - pool_));
  // Its pages are 0 from now on, where nothing is allocated: the shadow of all that a process once had would be most of its memory.
  const uintptr_t from = (reinterpret_cast<uintptr_t>(first) + kPage - 1) / kPage * kPage;
  const uintptr_t to = reinterpret_cast<uintptr_t>(end) / kPage * kPage;
  if (from < to) madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);
}

void Emulator::settle_memory() {
  for (size_t i = 0; i < used_; ++i) {
    const uint8_t state = shadow_[i].state;
    const uint8_t device = shadow_[i].device;
    shadow_[i] = Shadow{};
    shadow_[i].state = state == 1 ? uint8_t{2} : state;
    shadow_[i].device = device;
  }
  flags_.clear();
  freed_.clear();
}

void Emulator::fail(const std::string &what) {
  if (failure_.empty()) failure_ = what;
  // The fiber cannot go on; the scheduler sees the failure and drops everything.
  if (current_ != nullptr) switch_to_scheduler();
}

std::string Emulator::place(const void *at) const {
  const Block &block = *current_->block;
  return "block " + std::to_string(block.id) + " thread " + std::to_string(current_->thread) + " at offset " +
         std::to_string(static_cast<const char *>(at) - pool_);
}

Emulator::Shadow *Emulator::shadow(const void *at, size_t bytes, const char *what) {
  const char *byte = static_cast<const char *>(at);
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) fail(std::string("misaligned ") + what + " by " + place(at));
  if (byte < pool_ || byte + bytes > pool_ + used_) {
    check_foreign(byte, bytes, what);
    return nullptr;
  }
  Shadow *found = shadow_ + (byte - pool_);
  for (size_t i = 0; i < bytes; ++i)
    if (found[i].state == 0) fail(std::string(what) + " outside any allocation by " + place(at));
  const uint32_t device = current_->block->device;
  if (reach_is_set_ && !options_.reaches_all && found->device != kAnyDevice && found->device != device &&
      !reach_[device][found->device])
    fail(std::string(what) + " of memory of device " + std::to_string(found->device) + ", which device " +
         std::to_string(device) + " has no access to, by " + place(at));
  return found;
}

void Emulator::check_foreign(const char *at, size_t bytes, const char *what) {
  if (options_.reaches_all) return;
  auto region = regions_.upper_bound(at);
  if (region == regions_.begin()) fail(std::string(what) + " outside device memory by " + place(at));
  --region;
  if (at + bytes > region->second.end) fail(std::string(what) + " outside device memory by " + place(at));
  const std::set<uint32_t> &devices = region->second.devices;
  if (devices.count(kAnyDevice) + devices.count(current_->block->device) == 0)
    fail(std::string(what) + " of memory that was opened for device " + std::to_string(*devices.begin()) + ", not " +
         std::to_string(current_->block->device) + ", by " + place(at));
}

void Emulator::open_region(const void *at, size_t bytes, uint32_t device) {
  const char *begin = static_cast<const char *>(at);
  // Other memory may have been there.
  for (auto word = tellers_.lower_bound(begin); word != tellers_.end() && word->first < begin + bytes;
       word = tellers_.erase(word))
    flags_.erase(word->first);
  regions_[begin].end = begin + bytes;
  regions_[begin].devices.insert(device);
  coarse_begin_ = coarse_end_ = nullptr;
}

void Emulator::close_region(const void *at) {
  regions_.erase(static_cast<const char *>(at));
  spoilt_.erase(static_cast<const char *>(at));
  coarse_begin_ = coarse_end_ = nullptr;
}

bool Emulator::is_spoilt(const char *at) const {
  return std::any_of(spoilt_.begin(), spoilt_.end(), [&](const char *begin) {
    const auto region = regions_.find(begin);
    return region != regions_.end() && at >= begin && at < region->second.end;
  });
}

void Emulator::set_reach(uint32_t device, uint32_t owner, bool may) {
  reach_is_set_ = true;
  reach_[device][owner] = may;
}

bool Emulator::ordered(const Stamp &stamp, const Fiber &fiber) const {
  if (stamp.block == 0xffff) return true;
  const Block &block = *fiber.block;
  if (stamp.block == block.id) return stamp.interval < intervals_[block.id] || stamp.thread == fiber.thread;
  if (entry(clocks_[block.id], all_of(stamp.block)) >= stamp.interval) return true;
  return entry(fiber.learned, all_of(stamp.block)) >= stamp.interval;
}

bool Emulator::is_over(const Stamp &stamp, const Fiber &fiber) const {
  if (ordered(stamp, fiber)) return true;
  const size_t at = reads_of(stamp.block);
  return entry(clocks_[fiber.block->id], at) >= stamp.interval || entry(fiber.learned, at) >= stamp.interval;
}

Emulator::Stamp Emulator::stamp_of(const Fiber &fiber) const {
  const Block &block = *fiber.block;
  return {static_cast<uint16_t>(block.id), static_cast<uint16_t>(fiber.thread), intervals_[block.id]};
}

void Emulator::note_read(Shadow &mark, const Stamp &here) {
  if (mark.reader.block != here.block || mark.reader.thread != here.thread) mark.other_reader = mark.reader;
  mark.reader = here;
}

void Emulator::check_write(const Shadow &mark, const Fiber &fiber, const void *at) {
  if (!options_.report_races) return;
  if (!ordered(mark.writer, fiber)) fail("race: unordered write after write by " + place(at));
  if (!is_over(mark.reader, fiber) || !is_over(mark.other_reader, fiber))
    fail("race: unordered write after read by " + place(at));
}

void Emulator::check_coarsely(const void *at, size_t bytes, const char *what) {
  const char *byte = static_cast<const char *>(at);
  const uint32_t device = current_->block->device;
  if (in_pool(at) || (byte >= coarse_begin_ && byte + bytes <= coarse_end_ && device == coarse_device_)) return;
  check_foreign(byte, bytes, what);
  const auto region = std::prev(regions_.upper_bound(byte));
  coarse_begin_ = region->first;
  coarse_end_ = region->second.end;
  coarse_device_ = device;
}

void Emulator::read(const void *from, void *to, size_t bytes) {
  if (options_.coarse) {
    check_coarsely(from, bytes, "read");
    std::memcpy(to, from, bytes);
    return;
  }
  Shadow *marks = shadow(from, bytes, "read");
  const char *source = static_cast<const char *>(from);
  const Stamp here = stamp_of(*current_);
  for (size_t piece = 0; piece < bytes; piece += 4) {
    pause();
    const bool stale = random_() & 1;
    if (marks == nullptr) {
      std::memcpy(static_cast<char *>(to) + piece, source + piece, std::min(bytes - piece, size_t{4}));
      continue;
    }
    for (size_t i = piece; i < std::min(bytes, piece + 4); ++i) {
      Shadow &mark = marks[i];
      if (mark.state == 1 && options_.report_races) fail("read of memory never written by " + place(source + i));
      char value = source[i];
      if (!ordered(mark.writer)) {
        if (options_.report_races) fail("race: unordered read after write by " + place(source + i));
        if (stale) value = static_cast<char>(mark.old);
      }
      note_read(mark, here);
      static_cast<char *>(to)[i] = value;
    }
  }
}

void Emulator::write(void *to, const void *from, size_t bytes) {
  if (options_.coarse) {
    check_coarsely(to, bytes, "write");
    std::memcpy(to, from, bytes);
    return;
  }
  keep_step();
  Shadow *marks = shadow(to, bytes, "write");
  char *target = static_cast<char *>(to);
  const Stamp here = stamp_of(*current_);
  for (size_t piece = 0; piece < bytes; piece += 4) {
    pause();
    if (marks == nullptr) {
      std::memcpy(target + piece, static_cast<const char *>(from) + piece, std::min(bytes - piece, size_t{4}));
      continue;
    }
    for (size_t i = piece; i < std::min(bytes, piece + 4); ++i) {
      Shadow &mark = marks[i];
      check_write(mark, *current_, target + i);
      mark.old = static_cast<uint8_t>(target[i]);
      mark.state = 2;
      mark.writer = here;
      target[i] = static_cast<const char *>(from)[i];
    }
  }
  if (bytes == 16 && !spoilt_.empty() && is_spoilt(target)) target[15] ^= 0x10;
}

void Emulator::release(uint64_t *flag, uint64_t value, bool is_ordered) {
  keep_step();
  pause();
  shadow(flag, sizeof *flag, "flag store");
  if (is_ordered) {
    const Block &block = *current_->block;
    Clock clock = clocks_[block.id];
    join(clock, current_->learned);
    clock[all_of(block.id)] = intervals_[block.id] - 1;
    if (in_pool(flag)) flags_[flag] = clock;
  }
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
  wake(flag);
  pause();
}

uint64_t Emulator::relaxed_load(const uint64_t *flag) {
  pause();
  shadow(flag, sizeof *flag, "flag load");
  watch(*current_, reinterpret_cast<const char *>(flag), reinterpret_cast<const char *>(flag + 1), stores_);
  const auto published = flags_.find(flag);
  if (published != flags_.end()) join(current_->seen, published->second);
  const auto freed = freed_.find(flag);
  if (freed != freed_.end()) join(current_->learned, freed->second);
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

void Emulator::fence() {
  pause();
  Fiber &fiber = *current_;
  const uint32_t block = fiber.block->id;
  join(fiber.learned, fiber.seen);
  fiber.seen.clear();
  fiber.fenced = clocks_[block];
  join(fiber.fenced, fiber.learned);
  fiber.fenced[all_of(block)] = intervals_[block] - 1;
}

void Emulator::acquire() {
  pause();
  join(current_->learned, current_->seen);
  current_->seen.clear();
}

void Emulator::free_slot(uint64_t *flag, uint64_t value) {
  keep_step();
  pause();
  shadow(flag, sizeof *flag, "flag store");
  const uint32_t block = current_->block->id;
  if (in_pool(flag)) {
    Clock &clock = freed_[flag];
    clock.resize(std::max(clock.size(), reads_of(block) + 1), 0);
    clock[reads_of(block)] = intervals_[block] - 1;
  }
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
  wake(flag);
  pause();
}

void Emulator::relaxed_store(uint64_t *flag, uint64_t value) {
  keep_step();
  pause();
  shadow(flag, sizeof *flag, "flag store");
  if (!current_->fenced.empty() && in_pool(flag)) flags_[flag] = current_->fenced;
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
  wake(flag);
  pause();
}

// Holds a lane before a store until its whole warp has come as far.
void Emulator::keep_step() {
  if (options_.lockstep == 0) return;
  current_->held = true;
  if (release_warp(*current_)) return;
  current_->runnable = false;
  switch_to_scheduler();
}

bool Emulator::release_warp(Fiber &fiber) {
  if (options_.lockstep == 0) return false;
  std::vector<Fiber> &fibers = fiber.block->fibers;
  const size_t first = fiber.thread / options_.lockstep * options_.lockstep;
  const size_t last = std::min(first + options_.lockstep, fibers.size());
  for (size_t t = first; t < last; ++t)
    if (!fibers[t].held && !fibers[t].at_barrier && !fibers[t].finished) return false;
  for (size_t t = first; t < last; ++t) {
    if (!fibers[t].held) continue;
    fibers[t].held = false;
    fibers[t].runnable = true;
  }
  idle_ = 0;
  return true;
}

void Emulator::host_write(uint32_t *word, uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  wake();
}

void Emulator::tell(uint32_t *word, uint32_t value) {
  pause();
  shadow(word, sizeof *word, "store of a word");
  barrier(false);  // all that its stream did before
  Stamp &last = tellers_[reinterpret_cast<const char *>(word)];
  if (options_.report_races && !ordered(last)) fail("race: unordered stores of a word by " + place(word));
  if (options_.report_races && __atomic_load_n(word, __ATOMIC_RELAXED) == value)
    fail("a word is told what it holds by " + place(word));
  const Block &block = *current_->block;
  last = stamp_of(*current_);
  --last.interval;  // whoever sees this store knows of it
  Clock clock = clocks_[block.id];
  clock[all_of(block.id)] = intervals_[block.id] - 1;
  flags_[word] = clock;
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  wake(word);
  barrier(false);
}

void Emulator::await(const uint64_t *word, uint64_t bits) {
  uint64_t found = 0;
  for (;;) {
    pause();
    shadow(word, sizeof *word, "wait for a word");
    watch(*current_, reinterpret_cast<const char *>(word), reinterpret_cast<const char *>(word + 1), stores_);
    found = __atomic_load_n(word, __ATOMIC_ACQUIRE) & bits;
    if (found != 0) break;
    park();
  }
  if (static_cast<uint32_t>(found) == 0) options_.report_races = false;
  const auto published = flags_.find(word);
  if (published != flags_.end()) join(current_->learned, published->second);
  barrier(false);
}

// The 8 bytes at `from`, or, if they were stored a short while ago and nothing orders that store before us, the bytes
// before; *late is then set.
uint64_t Emulator::read_word(const Fiber &fiber, const char *from, bool *late) {
  pause();
  const Shadow *marks = shadow(from, 8, "read");
  uint64_t value = __atomic_load_n(reinterpret_cast<const uint64_t *>(from), __ATOMIC_ACQUIRE);
  if (marks == nullptr || ordered(marks->writer, fiber) || switches_ - marks->when >= kLatest || random_() % 2 != 0)
    return value;
  *late = true;
  for (size_t i = 0; i < 8; ++i) reinterpret_cast<uint8_t *>(&value)[i] = marks[i].old;
  return value;
}

void Emulator::write_word(const Fiber &fiber, char *to, uint64_t value) {
  pause();
  Shadow *marks = shadow(to, 8, "write");
  const Stamp here = stamp_of(fiber);
  for (size_t i = 0; i < 8 && marks != nullptr; ++i) {
    check_write(marks[i], fiber, to + i);
    marks[i].old = static_cast<uint8_t>(to[i]);
    marks[i].state = 2;
    marks[i].writer = here;
    marks[i].when = static_cast<uint32_t>(switches_);
  }
  __atomic_store_n(reinterpret_cast<uint64_t *>(to), value, __ATOMIC_RELEASE);
  wake(to);
}

// The data at `from` are the fiber's now: whoever writes there must come after.
void Emulator::take(const Fiber &fiber, const char *from, size_t bytes) {
  if (!in_pool(from)) return;
  const Stamp here = stamp_of(fiber);
  for (size_t i = 0; i < bytes; ++i) note_read(shadow_[from - pool_ + i], here);
}

void Emulator::watch(Fiber &fiber, const char *from, const char *end, uint64_t stores) {
  fiber.watched = from;
  fiber.watched_end = end;
  fiber.looked_at = stores;
}

uint32_t Emulator::ll_read(uint32_t lines, const void *const *from, const uint32_t *flags, uint32_t (*data)[2]) {
  const uint64_t stores = stores_;
  const uint32_t start = random_() % lines;
  const auto [lowest, highest] = std::minmax_element(from, from + lines, std::less<>());
  bool late = false;
  uint32_t found = 0;
  for (uint32_t i = 0; i < lines; ++i) {
    const uint32_t k = (start + i) % lines;
    const char *at = static_cast<const char *>(from[k]);
    shadow(at, 16, "read");
    bool there = true;
    const uint32_t first = random_() % 2;
    for (const uint32_t half : {first, 1 - first}) {
      const uint64_t word = read_word(*current_, at + 8 * half, &late);
      data[k][half] = static_cast<uint32_t>(word);
      there &= word >> 32 == flags[k];
    }
    if (there) {
      take(*current_, at, 16);
      found |= 1u << k;
    }
  }
  watch(*current_, static_cast<const char *>(*lowest), static_cast<const char *>(*highest) + 16, late ? ~uint64_t{0} : stores);
  return found;
}

void Emulator::ll_write(void *to, const uint32_t (&data)[2], uint32_t flag) {
  keep_step();
  char *at = static_cast<char *>(to);
  shadow(at, 16, "write");
  const uint32_t first = random_() % 2;
  for (const uint32_t half : {first, 1 - first})
    write_word(*current_, at + 8 * half, static_cast<uint64_t>(flag) << 32 | data[half]);
  pause();
}

// The last lane to arrive runs the verb for all.
bool Emulator::warp(WarpCall &call) {
  std::vector<Fiber> &fibers = current_->block->fibers;
  const uint32_t first = current_->thread / kLanes * kLanes;
  if (first + kLanes > fibers.size()) fail("a verb of a warp in a block without whole warps by " + place(call.memory));
  current_->call = &call;
  Fiber *lanes[kLanes];
  bool all = true;
  for (uint32_t l = 0; l < kLanes; ++l) {
    lanes[l] = &fibers[first + l];
    all &= lanes[l]->call != nullptr;
  }
  if (!all) {
    current_->runnable = false;
    switch_to_scheduler();
    return call.result;
  }
  for (const Fiber *lane : lanes)
    if (lane->call->kind != call.kind || lane->call->memory != call.memory || lane->call->packs != call.packs ||
        lane->call->flag != call.flag)
      fail("lanes of a warp make different calls by " + place(call.memory));
  bool result = true;
  if (call.kind == WarpCall::kLoad) result = load_lines(lanes);
  if (call.kind == WarpCall::kStore) store_lines(lanes);
  if (call.kind == WarpCall::kAny) result = std::any_of(lanes, lanes + kLanes, [](Fiber *f) { return f->call->result; });
  for (Fiber *lane : lanes) {
    lane->call->result = result;
    lane->call = nullptr;
    lane->runnable = true;
  }
  return result;
}

void Emulator::shuffle(uint32_t *order, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  std::shuffle(order, order + count, random_);
}

static_assert(kLineBytes == 16 * kLanes, "one line per access of a warp");

bool Emulator::load_lines(Fiber *const *lanes) {
  const WarpCall &call = *lanes[0]->call;
  shadow(call.memory, 16, "read");
  const uint64_t stores = stores_;
  constexpr uint32_t kWords = kLineBytes / 8;
  bool late = false, all = true;
  for (uint32_t k = 0; k < call.packs; ++k) {
    char *line = call.memory + k * kLineBytes;
    uint64_t words[kWords];
    words[kWords - 1] = read_word(*lanes[kLanes - 1], line + kLineBytes - 8, &late);
    const bool there = words[kWords - 1] == call.flag;
    all &= there;
    uint32_t order[kWords - 1];
    shuffle(order, kWords - 1);
    for (const uint32_t w : order) {
      // Behind a flag that is seen nothing is late.
      if (there)
        std::memcpy(&words[w], line + 8 * w, 8);
      else
        words[w] = read_word(*lanes[w / 2], line + 8 * w, &late);
    }
    for (uint32_t l = 0; l < kLanes; ++l) std::memcpy(lanes[l]->call->values + 16 * k, &words[2 * l], 16);
  }
  for (uint32_t l = 0; l < kLanes; ++l) {
    watch(*lanes[l], call.memory, call.memory + call.packs * kLineBytes, late ? ~uint64_t{0} : stores);
    for (uint32_t k = 0; all && k < call.packs; ++k) take(*lanes[l], call.memory + k * kLineBytes + 16 * l, 16);
  }
  return all;
}

void Emulator::store_lines(Fiber *const *lanes) {
  const WarpCall &call = *lanes[0]->call;
  shadow(call.memory, 16, "write");
  constexpr uint32_t kWords = kLineBytes / 8;
  uint32_t lines[64];
  shuffle(lines, call.packs);
  for (uint32_t i = 0; i < call.packs; ++i) {
    const uint32_t k = lines[i];
    uint32_t order[kWords];
    shuffle(order, kWords - 1);
    order[kWords - 1] = kWords - 1;  // the flag
    for (const uint32_t w : order) {
      uint64_t value;
      std::memcpy(&value, lanes[w / 2]->call->values + 16 * k + w % 2 * 8, 8);
      write_word(*lanes[w / 2], call.memory + k * kLineBytes + 8 * w, value);
    }
  }
}

bool Emulator::barrier(bool vote) {
  Block &block = *current_->block;
  block.vote |= vote;
  if (++block.arrived == block.live) {
    finish_barrier(block);
  } else {
    current_->at_barrier = true;
    current_->runnable = false;
    release_warp(*current_);
    switch_to_scheduler();
  }
  const bool result = block.result;
  pause();
  return result;
}

void Emulator::finish_barrier(Block &block) {
  for (Fiber &fiber : block.fibers) {
    if (!fiber.learned.empty()) join(clocks_[block.id], fiber.learned);
    fiber.learned.clear();
    fiber.at_barrier = false;
    if (!fiber.finished) fiber.runnable = true;
  }
  ++intervals_[block.id];
  block.arrived = 0;
  block.result = block.vote;
  block.vote = false;
  // Time that passed in vain still counts: a kernel may poll from one barrier to the next.
}

void Emulator::pause() {
  if (random_() % switch_odds_ == 0) switch_to_scheduler();
}

// Nothing that we wait for can change before another fiber stores there; if one has since we looked, or we saw what was
// there before a store, we look again.
void Emulator::park() {
  if (current_->looked_at == stores_) {
    current_->runnable = false;
    parked_.push_back(current_);
  }
  switch_to_scheduler();
}

void Emulator::park_since(uint64_t stores) {
  watch(*current_, nullptr, reinterpret_cast<const char *>(~uintptr_t{0}), stores);
  park();
}

void Emulator::wake(const void *at) {
  ++stores_;
  const auto sleeps_on = [at](Fiber *fiber) {
    if (at != nullptr && (at < fiber->watched || at >= fiber->watched_end)) return true;
    fiber->runnable = true;
    return false;
  };
  parked_.erase(std::remove_if(parked_.begin(), parked_.end(), [&](Fiber *f) { return !sleeps_on(f); }), parked_.end());
  idle_ = 0;
}

void Emulator::switch_to_scheduler() {
  Fiber *self = current_;
  emulation_switch(&self->stack_pointer, scheduler_);
}

void Emulator::enter() {
  Emulator &self = emulator();
  self.current_->block->body();
  self.end_fiber();
}

void Emulator::end_fiber() {
  Block &block = *current_->block;
  current_->finished = true;
  current_->runnable = false;
  --block.live;
  release_warp(*current_);
  if (block.live != 0 && block.arrived == block.live) finish_barrier(block);
  switch_to_scheduler();
  std::abort();
}

bool Emulator::may_start(const LaunchRequest &request) const {
  if (request.queue != kNoQueue && queues_.at(request.queue).front() != request.number) return false;
  for (const auto &[other, launches] : request.after) {
    const Stream &stream = streams_[other];
    const bool at_work = stream.running != 0 || !stream.waiting.empty();
    if (stream.next - (at_work ? 1 : 0) < launches) return false;
  }
  return std::all_of(request.behind.begin(), request.behind.end(), [this](const auto &one) {
    const Stream &stream = streams_[one.first];
    return stream.next > one.second || (stream.next == one.second && stream.waiting.empty());
  });
}

void Emulator::start_blocks() {
  std::vector<uint32_t> order(streams_.size());
  for (uint32_t s = 0; s < order.size(); ++s) order[s] = s;
  std::shuffle(order.begin(), order.end(), random_);
  for (uint32_t s : order) {
    Stream &stream = streams_[s];
    if (s == options_.late_stream && idle_ == 0) continue;
    if (stream.running == 0 && stream.waiting.empty() && stream.next < stream.launches.size() &&
        may_start(stream.launches[stream.next])) {
      const size_t launch = stream.next++;
      LaunchRequest &begun = stream.launches[launch];
      for (const auto &[other, launches] : begun.after)
        if (launches != 0) join(stream.clock, streams_[other].launches[launches - 1].at_end);
      join(stream.clock, begun.known);
      if (begun.queue != kNoQueue && !begun.holds_queue) leave_queue(begun.queue);
      for (uint32_t b = 0; b < stream.launches[launch].ids.size(); ++b) stream.waiting.emplace_back(launch, b);
    }
    while (!stream.waiting.empty()) {
      const auto [launch, index] = stream.waiting.front();
      const uint32_t device = stream.launches[launch].devices[index];
      if (options_.resident != 0 && resident_[device] >= options_.resident) break;
      stream.waiting.erase(stream.waiting.begin());
      start_block(stream, s, launch, index);
    }
  }
}

void Emulator::start_block(Stream &stream, uint32_t number, size_t launch, uint32_t index) {
  const LaunchRequest &request = stream.launches[launch];
  auto *block = new Block;
  block->id = request.ids[index];
  block->index = index;
  block->device = request.devices[index];
  block->stream = number;
  block->body = request.body;
  block->shared.assign((request.shared_bytes + 15) / 16 * 16 + kOwnShared, static_cast<char>(0xa5));
  block->live = request.threads;
  block->fibers.resize(request.threads);
  ++resident_[block->device];
  ++stream.running;
  ++intervals_[block->id];
  join(clocks_[block->id], stream.clock);
  static const uint32_t kPercents[] = {100, 100, 40, 5};
  const bool even = random_() % 2;
  const uint32_t whole = kPercents[random_() % 4];
  for (uint32_t t = 0; t < request.threads; ++t) {
    Fiber &fiber = block->fibers[t];
    fiber.block = block;
    fiber.thread = t;
    fiber.percent = options_.seed == 0 ? 100 : even ? whole : kPercents[random_() % 4];
    if (stacks_.empty()) stacks_.push_back(static_cast<char *>(map(kStackBytes)));
    fiber.stack = stacks_.back();
    stacks_.pop_back();
    fiber.stack_pointer = prepare(fiber.stack, &Emulator::enter);
    fibers_.push_back(&fiber);
  }
  blocks_.push_back(block);
}

void Emulator::end_block(Block &block) {
  Stream &stream = streams_[block.stream];
  --resident_[block.device];
  --stream.running;
  ++intervals_[block.id];
  clocks_[block.id][all_of(block.id)] = intervals_[block.id] - 1;
  for (Fiber &fiber : block.fibers) {
    if (!fiber.learned.empty()) join(clocks_[block.id], fiber.learned);
    stacks_.push_back(fiber.stack);
  }
  join(stream.clock, clocks_[block.id]);
  if (stream.running == 0 && stream.waiting.empty()) {
    LaunchRequest &launch = stream.launches[stream.next - 1];
    launch.at_end = stream.clock;
    if (launch.queue != kNoQueue && launch.holds_queue) leave_queue(launch.queue);
    if (launch.ended) launch.ended();
  }
  fibers_.erase(std::remove_if(fibers_.begin(), fibers_.end(), [&](Fiber *f) { return f->block == &block; }), fibers_.end());
  blocks_.erase(std::find(blocks_.begin(), blocks_.end(), &block));
  delete &block;
  idle_ = 0;
}

bool Emulator::late_is_left() const {
  if (options_.late_stream >= streams_.size()) return false;
  const Stream &late = streams_[options_.late_stream];
  return late.next < late.launches.size() || !late.waiting.empty();
}

// Every ready fiber once, in a random order, slow ones left out most of the time. False: there is none.
bool Emulator::round() {
  std::vector<Fiber *> ready;
  for (Fiber *fiber : fibers_)
    if (fiber->runnable) ready.push_back(fiber);
  if (ready.empty()) return false;
  std::shuffle(ready.begin(), ready.end(), random_);
  const bool all_slow = std::all_of(ready.begin(), ready.end(), [](Fiber *f) { return f->percent < 100; });
  for (Fiber *fiber : ready) {
    if (!fiber->runnable) continue;
    if (!all_slow && random_() % 100 >= fiber->percent) continue;
    current_ = fiber;
    ++switches_;
    emulation_switch(&scheduler_, fiber->stack_pointer);
    current_ = nullptr;
    if (!failure_.empty()) return true;
    if (options_.abort_at != 0 && switches_ == options_.abort_at) {
      for (uint32_t *flag : options_.abort_flags) *flag = 1;
      wake();
    }
  }
  std::vector<Block *> done;
  for (Block *block : blocks_)
    if (block->live == 0) done.push_back(block);
  for (Block *block : done) end_block(*block);
  if (!done.empty()) start_blocks();
  return true;
}

void Emulator::loop() {
  start_blocks();
  while ((!fibers_.empty() || late_is_left()) && failure_.empty()) {
    if (round()) continue;
    const bool patient = options_.patience_ms != 0;
    if (++idle_ > (patient ? options_.patience_ms : kFakeSeconds)) {
      failure_ = "deadlock: " + std::to_string(parked_.size()) + " threads wait for flags that nobody will store";
      return;
    }
    if (patient) usleep(1000);
    clock_ns_ += patient ? 1000000 : 1000000000;
    if (options_.late_stream < streams_.size()) start_blocks();
    for (Fiber *fiber : parked_) fiber->runnable = true;
    parked_.clear();
  }
}

void Emulator::drop_blocks() {
  for (Block *block : blocks_) {
    for (Fiber &fiber : block->fibers) stacks_.push_back(fiber.stack);
    delete block;
  }
  blocks_.clear();
  fibers_.clear();
  parked_.clear();
  current_ = nullptr;
}

void Emulator::reseed(uint64_t seed) {
  static const uint32_t kOdds[] = {1, 3, 10, 40};
  options_.seed = seed;
  random_.seed(seed * 2654435761u + 1);
  switch_odds_ = kOdds[seed % 4];
}

void Emulator::begin(const Options &options) {
  options_ = options;
  reseed(options.seed);
  clock_ns_ = 1;
}

uint32_t Emulator::add_block_id() {
  const auto id = static_cast<uint32_t>(clocks_.size());
  clocks_.emplace_back(reads_of(id) + 1, 0);
  intervals_.push_back(1);
  return id;
}

uint32_t Emulator::add_stream() {
  streams_.emplace_back();
  return static_cast<uint32_t>(streams_.size() - 1);
}

void Emulator::add(LaunchRequest launch) {
  for (uint32_t device : launch.devices)
    if (resident_.size() <= device) resident_.resize(device + 1, 0);
  launch.known = host_;
  if (launch.queue != kNoQueue) queues_[launch.queue].push_back(launch.number);
  const uint32_t stream = launch.stream;
  streams_[stream].launches.push_back(std::move(launch));
  idle_ = 0;
}

void Emulator::known_to_host(const Clock &clock) { join(host_, clock); }

bool Emulator::step() {
  start_blocks();
  return round();
}

uint32_t Emulator::poll(uint64_t nanoseconds) {
  clock_ns_ += nanoseconds;
  for (Fiber *fiber : parked_) fiber->runnable = true;
  parked_.clear();
  return ++idle_;
}

void Emulator::give_up() {
  failure_ = "deadlock: " + std::to_string(fibers_.size()) + " threads wait for flags that nobody stores";
}

void Emulator::drop() {
  drop_blocks();
  for (Stream &stream : streams_) {
    stream.next = stream.launches.size();
    stream.running = 0;
    stream.waiting.clear();
  }
  std::fill(resident_.begin(), resident_.end(), 0);
  queues_.clear();
}

std::string Emulator::run(const Options &options, uint32_t nblocks, uint32_t nstreams, std::vector<LaunchRequest> launches) {
  options_ = options;
  reseed(options.seed);
  clocks_.assign(nblocks, Clock(all_of(nblocks), 0));
  intervals_.assign(nblocks, 1);
  streams_.assign(nstreams, {});
  uint32_t ndevices = 1;
  for (LaunchRequest &launch : launches) {
    for (uint32_t device : launch.devices) ndevices = std::max(ndevices, device + 1);
    streams_[launch.stream].launches.push_back(std::move(launch));
  }
  resident_.assign(ndevices, 0);
  failure_.clear();
  switches_ = idle_ = 0;
  stores_ = 0;
  clock_ns_ = 1;
  parked_.clear();
  loop();
  drop_blocks();  // where they stand, after a failure
  return failure_;
}

}  // namespace emulation
