// The share of each path class (nvlink, pcie, net) in the calls of one rank: the weights that the ranks have agreed on, or the
// weights of the tables (control/balancer.h); classes that have failed; and the times that kernels report for each class.
//
// Owner: CudaRank. Threads: the thread that makes a call asks for weights; the watcher looks for failed links and stale graphs;
// lose_class() may come from any thread. No call blocks.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "control/balancer.h"
#include "control/losses.h"
#include "cuda/class_times.h"
#include "cuda/connector_memory.h"
#include "cuda/link_monitor.h"
#include "executor/backend.h"

namespace collc::cuda {

class PathShares final : public PathClasses {
 public:
  explicit PathShares(const RankContext &context) : context_(context) {}

  // `plan` must outlive this object. `times`: where the kernels of this rank report.
  void open(const DevicePlan &plan, DeviceNumber device, const ConnectorMemory &connectors, const ClassTimes &times);

  // Returns false if a call may not start before other ranks have answered (control/agreement.h); the caller asks again.
  bool may_start(const Call &call);
  // Must be called while may_start() returns false: looks for reasons to keep the weights as they are. `waited_ms`: since the
  // first may_start() of this call.
  void end_agreeing(int64_t waited_ms);
  // Returns the weights of a call of row `row` of the plan that starts. Once for each call. `is_timed`: the kernels of the call
  // report their times.
  uint32_t start(const Call &call, uint32_t row, bool *is_timed);
  // The same for a call by copy engines, which report no times.
  uint32_t start_copies(const Call &call, bool is_captured);

  // A bit for each class that has failed.
  uint32_t lost() const { return losses_.lost(); }
  // Must be called by the watcher every few milliseconds; `runs`: a call of this rank has not ended.
  void look_at_lanes(bool runs) { links_.see(runs); }
  // Must be called by the watcher now and then: reports classes that have failed, and graphs that contain them.
  void look();

  void force_weights(uint32_t weights) override;
  bool lose_class(uint32_t path_class, const std::string &why) override;
  bool class_times(uint64_t (&spent)[kClasses]) override;

 private:
  struct TimedLaunch {
    uint64_t number;
    uint32_t row;  // of the plan
    uint32_t weights;
  };

  uint32_t choose(const Call &call, uint32_t table_weights);
  uint32_t tuned_weights(const Program &program) const;
  void tell_times();
  void tell_nothing(const Call &call);
  void note_captured(uint32_t weights);
  bool has_cut_programs() const;

  const RankContext &context_;
  const DevicePlan *plan_ = nullptr;
  ClassTimes times_ = {nullptr, 0};
  uint32_t refused_ = 0;  // a bit for each class that has no memory or no NIC: nothing to fall back on
  Losses losses_;  // classes of links that have failed
  LinkMonitor links_;
  std::unique_ptr<Balancer> balancer_;  // null: the weights of calls do not change
  std::optional<uint32_t> forced_weights_;  // by force_weights(): then timed_calls_ keeps only the last call
  std::deque<TimedLaunch> timed_calls_;
  std::atomic<uint32_t> in_graphs_{0};  // a bit for each class that captured calls contain; relaxed: it orders no other data
  uint32_t reported_stale_ = 0;  // classes in graphs that the log has reported as failed
};

// Returns when each rank may start its call. This thread makes the calls of all of them. Blocks for about 1 s at most.
void agree_on_weights(const std::vector<PathShares *> &ranks, const std::vector<const Call *> &calls);

}  // namespace collc::cuda
