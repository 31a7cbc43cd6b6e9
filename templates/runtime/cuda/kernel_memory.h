// The memory that the kernels of one rank use besides its arena. On the GPU: the tables (rank_tables.h), the p2p connectors, a
// table of messages, and clock ticks if the kernels count. In pinned host memory: the abort flag, a report per channel, and the
// times of path classes (class_times.h).
//
// Owner: CudaRank. Threads: launches read the addresses; the watcher sets the abort flag and reads the reports. No call waits
// for a kernel except times().
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/class_times.h"
#include "cuda/deferred_frees.h"
#include "cuda/device.h"
#include "executor/backend.h"

namespace collc::cuda {

// The send and recv connectors of one rank, as its kernels read them.
struct Connectors {
  std::vector<FifoEnd> fifos;  // as DevicePlan::make_ends orders them
  std::vector<FifoEnd> p2p;  // as make_lane_ends orders them
};

class KernelMemory {
 public:
  // Once, on the current device. `timeout_ns`: longest wait of a kernel, in nanoseconds; 0: no limit.
  Status open(const DevicePlan &plan, uint32_t plan_rank, uint64_t timeout_ns, const Connectors &connectors);
  // The same for a communicator of one rank.
  Status open_alone();

  const RankState *state() const { return reinterpret_cast<const RankState *>(state_); }
  // Room for kTableMessages messages of a launch of transfers.
  Message *messages() const { return reinterpret_cast<Message *>(messages_); }
  ClassTimes class_times() const { return {pinned_ + times_at_, nchannels_}; }

  // Kernels end without being done once the flag is not 0.
  const volatile uint32_t *abort_flag() const { return reinterpret_cast<const volatile uint32_t *>(pinned_); }
  bool is_aborted() const { return *abort_flag() != 0; }
  void abort() { *reinterpret_cast<volatile uint32_t *>(pinned_) = 1; }
  bool has_abort_flag() const { return pinned_ != nullptr; }
  // Returns true if a kernel has waited too long or received data of another call, with its report.
  bool find_report(Report *report, uint32_t *channel) const;
  // Returns the times of each channel since creation; empty unless COLLC_BREAKDOWN is set and the kernels count. Blocks until
  // the current device has done its work.
  std::vector<ChannelTimes> times() const;

  void leave(DeferredFrees *frees, const Device *device) const;

 private:
  uint32_t nchannels_ = 0, nreports_ = 0;
  size_t times_at_ = 0;  // offset of the class times in the pinned memory
  Address state_ = 0;  // of the tables
  Address p2p_ = 0;  // of the p2p connectors
  Address messages_ = 0;
  Address ticks_ = 0;  // a ChannelTicks per channel; 0 unless the kernels count
  char *pinned_ = nullptr;
  bool has_breakdown_ = false;  // the kernels count, and COLLC_BREAKDOWN is set
};

}  // namespace collc::cuda
