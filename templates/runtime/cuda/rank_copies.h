// The calls of one rank that copy engines do between ranks that decide apart (COLLC_COPY_ENGINES, staged_copies.h): whether all
// ranks can, the slots in pinned host memory, and the lanes.
//
// Owner: CudaRank. Threads: the thread that makes a call uses the lanes; the watcher looks for late ranks and releases streams.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cuda/pinned.h"
#include "cuda/staged_copies.h"
#include "cuda/world.h"

namespace collc::cuda {

class RankCopies {
 public:
  explicit RankCopies(const RankContext &context) : context_(context) {}

  // Reads COLLC_COPY_ENGINES and writes what this rank can into `settings`, for the others.
  Status read_settings(const Device &device, RankSettings *settings);
  // Decides from the settings of all ranks where the slots are, or why there are none. The same on all ranks.
  void agree(const std::vector<RankSettings> &settings, Agreed *agreed) const;
  // Collective: makes the lanes, or none on any rank if one of them cannot.
  Status open(const Device &device, const Agreed &agreed, World *world);

  // Returns the least bytes of a call that copy engines do where they can; 0: they do none.
  uint32_t least_bytes() const { return least_bytes_; }
  StagedCopies *lane(CopyLane lane) const { return lanes_[static_cast<uint32_t>(lane)].get(); }
  bool has_lanes() const { return lanes_[0] != nullptr || lanes_[1] != nullptr; }
  // Returns the range of each block of a call that each lane carries. The lane in host memory carries the weight of pcie in
  // `weights`, and everything if there is no other lane.
  std::array<CopyRange, kCopyLanes> cut(const Call &call, uint32_t weights) const;

  // Returns the step that a stream has waited for longer than `seconds`, in words; empty: no stream has.
  std::string find_late(int64_t now_ms, double seconds) const;
  // Lets streams wait for no rank from now on. The words are pinned until calls have ended.
  void release() const;
  void close() { lanes_ = {}; }
  void leave(DeferredFrees *frees);

 private:
  Status make_lanes(const Device &device, const Agreed &agreed, World *world);
  Status find_problem(const Status &own, std::string *problem) const;

  const RankContext &context_;
  uint32_t least_bytes_ = 0;
  std::array<std::unique_ptr<StagedCopies>, kCopyLanes> lanes_;
  std::unique_ptr<PinnedMemory> host_slots_;
};

}  // namespace collc::cuda
