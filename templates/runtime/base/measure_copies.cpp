#include "base/measure_copies.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/copy.h"
#include "base/line_load.h"
#include "base/lines.h"
#include "base/two_ranks.h"

namespace collc {
namespace {

// The sizes of FIFOs in plans.
constexpr uint64_t kSlotBytes = 128 << 10, kSlots = 4, kRing = kSlots * kSlotBytes * kPlaces;
constexpr uint64_t kBatchBytes = 4 << 20;  // small copies are repeated until they have moved about this many bytes
constexpr uint64_t kLineLoads = 25 * kLoads;  // by each thread
constexpr uint64_t kAlign = 2 << 20;
constexpr uint32_t kSpins = 2000;  // then the waiting thread yields, because the other thread may need the core

class Memory {
 public:
  explicit Memory(uint64_t bytes) : bytes_((bytes + kAlign - 1) / kAlign * kAlign) {
    void *at = mmap(nullptr, bytes_ + kAlign, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    base_ = static_cast<char *>(at);
    at_ = base_ + (0 - reinterpret_cast<uintptr_t>(base_)) % kAlign;
    madvise(at_, bytes_, MADV_HUGEPAGE);
    std::memset(at_, 1, bytes_);
  }
  ~Memory() {
    if (base_ != nullptr) munmap(base_, bytes_ + kAlign);
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  char *at() const { return at_; }

 private:
  uint64_t bytes_;
  char *base_ = nullptr, *at_ = nullptr;
};

// One thread's memory and counters. The other thread reads the counters and the slots.
struct alignas(kLine) Side {
  std::atomic<uint64_t> written{0};  // chunks stored into the slots, or calls announced
  alignas(kLine) std::atomic<uint64_t> read{0};  // chunks or calls of the other thread that this thread has read
  alignas(kLine) char *buffer = nullptr;
  char *slots = nullptr;
  uint64_t sent = 0, received = 0;
  alignas(kProbeRoom) std::atomic<uint64_t> probe{0};  // probe line of kLineLoad; stored before the release store to `written`
};

// Returns whether both threads send and receive in a call.
bool both(Way way) { return way >= Way::kBothSlots && way <= Way::kBothSummedKernel; }

// The work of one of the two threads.
class Hand {
 public:
  Hand(Way way, uint64_t bytes, Side *mine, Side *peer)
      : way_(way),
        bytes_(bytes),
        mine_(*mine),
        peer_(*peer),
        into_(mine->buffer + (both(way) ? bytes : 0)),
        own_(mine->buffer + 2 * bytes) {}

  // Runs one call. In one-way calls the threads swap roles after each call, so a thread sends next what it has received.
  void call(bool sends) {
    switch (way_) {
      case Way::kSlots:
        return through_slots(sends, !sends, false, false);
      case Way::kStreamedSlots:
        return through_slots(sends, !sends, true, false);
      case Way::kSlotsStreamed:
        return through_slots(sends, !sends, false, true);
      case Way::kAllStreamed:
        return through_slots(sends, !sends, true, true);
      case Way::kBothSlots:
        return through_slots(true, true, false, false);
      case Way::kBothStreamedSlots:
        return through_slots(true, true, true, false);
      case Way::kBothSlotsStreamed:
        return through_slots(true, true, false, true);
      case Way::kKernel:
        return by_kernel(sends, !sends);
      case Way::kBothKernel:
        return by_kernel(true, true);
      case Way::kBothSummedSlots:
        return sum_slots(false);
      case Way::kBothSummedStreamed:
        return sum_slots(true);
      case Way::kBothSummedKernel:
        return sum_by_kernel();
      case Way::kOwn:
        return copy(mine_.buffer + bytes_, mine_.buffer, bytes_, false);
      case Way::kOwnStreamed:
        return copy(mine_.buffer + bytes_, mine_.buffer, bytes_, true);
      case Way::kOwnSlots:
        for (uint64_t at = 0; at < bytes_; at += kSlotBytes) {
          const uint64_t part = std::min(kSlotBytes, bytes_ - at);
          copy(mine_.slots, mine_.buffer + at, part, false);
          copy(mine_.buffer + bytes_ + at, mine_.slots, part, false);
        }
        return;
      case Way::kOwnKernel:
        return kernel_copy(mine_.buffer + bytes_, mine_.buffer, bytes_);
      case Way::kLineLoad:
        return load_line(sends);
      case Way::kCount:
        return;
    }
  }

  bool refused() const { return refused_; }

  // Returns the microseconds of a line load beyond a load from the core's own cache: the median over groups of kLoads loads,
  // of each group's minimum. Takes the loads since the previous call of this function.
  double load() {
    std::vector<uint64_t> least;
    for (size_t i = 0; i + kLoads <= loads_.size(); i += kLoads)
      least.push_back(*std::min_element(&loads_[i], &loads_[i] + kLoads));
    loads_.clear();
    if (least.empty()) return 0;
    std::nth_element(least.begin(), least.begin() + static_cast<ptrdiff_t>(least.size() / 2), least.end());
    const uint64_t own = time_own_load(), found = least[least.size() / 2];
    return found <= own ? 0 : static_cast<double>(found - own) / ticks_per_ns() * 1e-3;
  }

 private:
  static void wait(const std::atomic<uint64_t> &counter, uint64_t value) {
    for (uint32_t spins = 0; counter.load(std::memory_order_acquire) < value; ++spins)
      if (spins > kSpins) sched_yield();
  }
  static void copy(void *to, const void *from, uint64_t bytes, bool past) {
    past ? stream(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
  }
  void kernel_copy(char *to, char *from, uint64_t bytes) {
    const iovec here{to, bytes}, there{from, bytes};
    refused_ |= process_vm_readv(getpid(), &here, 1, &there, 1, 0) != static_cast<ssize_t>(bytes);
  }

  void through_slots(bool sends, bool receives, bool past_in, bool past_out) {
    const uint64_t most =
        sends && receives ? kSlotBytes : std::clamp<uint64_t>(bytes_ / kPipelined, kLeastPipelined, kSlotBytes);
    for (uint64_t at = 0; at < bytes_; at += most) {
      const uint64_t part = std::min(most, bytes_ - at);
      if (sends) {
        if (mine_.sent >= kSlots) wait(peer_.read, mine_.sent - kSlots + 1);
        copy(mine_.slots + mine_.sent * part % kRing, mine_.buffer + at, part, past_in);
        if (receives) copy(own_ + at, mine_.buffer + at, part, past_out);
        mine_.written.store(++mine_.sent, std::memory_order_release);
      }
      if (receives) {
        wait(peer_.written, mine_.received + 1);
        copy(into_ + at, peer_.slots + mine_.received * part % kRing, part, past_out);
        mine_.read.store(++mine_.received, std::memory_order_release);
      }
    }
  }

  void by_kernel(bool sends, bool receives) {
    if (sends) mine_.written.store(++mine_.sent, std::memory_order_release);
    if (receives) {
      wait(peer_.written, mine_.received + 1);
      kernel_copy(into_, peer_.buffer, bytes_);
      mine_.read.store(++mine_.received, std::memory_order_release);
    }
    if (sends && receives) copy(own_, mine_.buffer, bytes_, false);
    if (sends) wait(peer_.read, mine_.sent);
  }

  // into_ = the thread's own data + `other`. `bytes` is a multiple of 64.
  void add(uint64_t at, const char *other, uint64_t bytes) {
    typedef float Four __attribute__((vector_size(16), may_alias));
    for (uint64_t i = 0; i < bytes; i += 2 * sizeof(Four)) {
      const auto *a = reinterpret_cast<const Four *>(mine_.buffer + at + i), *b = reinterpret_cast<const Four *>(other + i);
      auto *to = reinterpret_cast<Four *>(into_ + at + i);
      const Four first = a[0] + b[0], second = a[1] + b[1];
      to[0] = first, to[1] = second;
    }
  }

  void sum_slots(bool past_in) {
    for (uint64_t at = 0; at < bytes_; at += kSlotBytes) {
      const uint64_t part = std::min(kSlotBytes, bytes_ - at);
      if (mine_.sent >= kSlots) wait(peer_.read, mine_.sent - kSlots + 1);
      copy(mine_.slots + mine_.sent * part % kRing, mine_.buffer + at, part, past_in);
      mine_.written.store(++mine_.sent, std::memory_order_release);
      wait(peer_.written, mine_.received + 1);
      add(at, peer_.slots + mine_.received * part % kRing, part);
      mine_.read.store(++mine_.received, std::memory_order_release);
    }
  }

  // The slots are only this thread's scratch memory here; the other thread does not read them.
  void sum_by_kernel() {
    for (uint64_t at = 0; at < bytes_; at += kSlotBytes) {
      const uint64_t part = std::min(kSlotBytes, bytes_ - at);
      mine_.written.store(++mine_.sent, std::memory_order_release);
      wait(peer_.written, mine_.received + 1);
      kernel_copy(mine_.slots, peer_.buffer + at, part);
      add(at, mine_.slots, part);
      mine_.read.store(++mine_.received, std::memory_order_release);
    }
    wait(peer_.read, mine_.sent);
  }

  void load_line(bool sends) {
    if (sends) {
      mine_.probe.store(++mine_.sent, std::memory_order_relaxed);
      mine_.written.store(mine_.sent, std::memory_order_release);
      return wait(peer_.read, mine_.sent);
    }
    wait(peer_.written, ++mine_.received);
    loads_.push_back(time_load(peer_.probe));
    mine_.read.store(mine_.received, std::memory_order_release);
  }

  Way way_;
  uint64_t bytes_;
  Side &mine_, &peer_;
  char *into_, *own_;
  bool refused_ = false;
  std::vector<uint64_t> loads_;
};

void pin(uint32_t number) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && number-- == 0) CPU_SET(core, &one);
  if (CPU_COUNT(&one) != 0) static_cast<void>(sched_setaffinity(0, sizeof one, &one));
}

// Runs both threads of a measurement.
class Round {
 public:
  Round(const uint64_t *sizes, uint32_t nsizes, uint32_t other, double *microseconds)
      : sizes_(sizes), nsizes_(nsizes), other_(other), microseconds_(microseconds) {}

  bool run() {
    const uint64_t most = *std::max_element(sizes_, sizes_ + nsizes_);
    Memory first(3 * most), second(3 * most), slots(2 * kRing);
    if (first.at() == nullptr || second.at() == nullptr || slots.at() == nullptr) return false;
    sides_[0].buffer = first.at();
    sides_[1].buffer = second.at();
    for (uint32_t side = 0; side < 2; ++side) sides_[side].slots = slots.at() + side * kRing;
    return run_two([this](uint32_t me) { take_part(me); });
  }

  // Measures only the load of a cache line.
  bool run_line() {
    return run_two([this](uint32_t me) {
      pin(me == 0 ? 0 : other_);
      measure(me, Way::kLineLoad, 1, microseconds_);
    });
  }

 private:
  template <class Part>
  static bool run_two(Part part) {
    try {
      std::thread second([&part] { part(1); });
      std::thread first([&part] { part(0); });
      first.join();
      second.join();
    } catch (const std::system_error &) {
      return false;
    }
    return true;
  }

  void take_part(uint32_t me) {
    pin(me == 0 ? 0 : other_);
    double *microseconds = microseconds_;
    for (uint32_t i = 0; i < nsizes_; ++i)
      for (uint32_t w = 0; w < static_cast<uint32_t>(Way::kCount); ++w, ++microseconds)
        measure(me, static_cast<Way>(w), sizes_[i], microseconds);
  }

  void measure(uint32_t me, Way way, uint64_t bytes, double *microseconds) {
    const uint64_t least = way < Way::kBothSlots ? 2 : 1;  // one-way: each thread sends once
    const uint64_t calls = way == Way::kLineLoad ? 2 * kLineLoads : std::max<uint64_t>(least, kBatchBytes / bytes / 2 * 2);
    Hand hand(way, bytes, &sides_[me], &sides_[1 - me]);
    // Two calls bring the caches into the state that such calls leave.
    for (uint64_t i = 0; i < 2; ++i) hand.call(i == me);
    meet();
    const uint64_t begin = now_ns();
    for (uint64_t i = 0; i < calls; ++i) hand.call(i % 2 == me);
    meet();
    if (me != 0) return;
    if (way == Way::kLineLoad) {
      *microseconds = hand.load();
      return;
    }
    *microseconds = hand.refused() ? -1 : static_cast<double>(now_ns() - begin) * 1e-3 / static_cast<double>(calls);
  }

  void meet() {
    const uint32_t round = met_.fetch_add(1) / 2;
    for (uint32_t spins = 0; met_.load() < 2 * (round + 1); ++spins)
      if (spins > kSpins) sched_yield();
  }

  const uint64_t *sizes_;
  uint32_t nsizes_, other_;
  double *microseconds_;
  Side sides_[2];
  std::atomic<uint32_t> met_{0};
};

}  // namespace

bool measure_copies(const uint64_t *sizes, uint32_t nsizes, uint32_t other, double *microseconds) {
  return Round(sizes, nsizes, other, microseconds).run();
}

uint32_t measure_lines(uint32_t most, double *microseconds) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
  const auto cores = static_cast<uint32_t>(CPU_COUNT(&allowed));
  for (uint32_t other = 0; other < std::min(cores, most); ++other) {
    microseconds[other] = 0;
    if (other != 0 && !Round(nullptr, 0, other, &microseconds[other]).run_line()) microseconds[other] = -1;
  }
  return cores;
}

}  // namespace collc
