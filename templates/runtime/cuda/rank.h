// One rank on the CUDA target: its state on the device, and what the host watches of it.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "control/balancer.h"
#include "control/report_loss.h"
#include "cuda/connector_memory.h"
#include "cuda/kernel_memory.h"
#include "cuda/lending.h"
#include "cuda/link_watch.h"
#include "cuda/loans.h"
#include "cuda/peer_watch.h"
#include "cuda/rank_launches.h"
#include "cuda/pinned.h"
#include "cuda/staged_copies.h"
#include "cuda/world.h"

namespace collc::cuda {

class CudaRank final : public RankBackend {
 public:
  static Status open(const RankContext &context, std::unique_ptr<RankBackend> *made);
  ~CudaRank() override;

  const RankContext &context() const { return context_; }
  const Device &device() const { return *device_; }
  const std::shared_ptr<World> &world() const { return world_; }  // null in a communicator of one rank
  uint32_t rank() const { return context_.rank; }
  const KernelMemory &memory() const { return memory_; }
  uint64_t timeout_ns() const { return static_cast<uint64_t>(context_.timeout * 1e9); }
  RankLaunches &launches() { return launches_; }
  const RankLaunches &launches() const { return launches_; }
  // Whether its process runs the kernels of direct.h in the place of Simple's.
  bool runs_direct() const { return runs_direct_; }
  // Bytes from which on copy engines do calls in which they can; 0: never.
  uint32_t copies_from() const { return copies_from_; }
  // How they do those of ranks that decide apart, over one of the ways; null: not so.
  StagedCopies *copies(CopyLane lane) { return copies_[static_cast<uint32_t>(lane)].get(); }
  bool has_copies() const { return copies_[0] != nullptr || copies_[1] != nullptr; }
  // What each lane carries of the blocks of such a call that starts; once for each.
  std::array<CopyRange, kCopyLanes> start_copies(const Call &call, bool captured);
  // What it lends of a call to kernels of other ranks (lending.h): RankCall::factor. `first` and `room`: those of the launch's
  // words that are its.
  uint64_t lend(const Call &call, uint64_t *words, uint32_t first, uint32_t room);
  // Waits until this GPU has done what it was given.
  std::vector<ChannelTimes> times() const override;
  uint32_t protocol_of(const Program &program, uint64_t bytes) const override;
  bool can_run(const Program &program, const Call *call) const override;
  void offer_buffer(const void *memory, uint64_t bytes, double seconds) override;
  void register_buffer(const void *memory, uint64_t bytes) override;
  void withdraw_buffer(const void *memory) override;
  Status make_workbench(uint64_t bytes, std::unique_ptr<Workbench> *made) override;
  // Ranks of one process that share a GPU transfer in one launch, which a rank cannot make alone.
  bool may_transfer(uint32_t peer) const override { return !world_->shares(context_.placement.plan_rank[peer], device_); }
  bool has_calls() const override;
  void wait_for_calls_that_end() override;
  uint64_t gpu_bytes() const override;
  void force_weights(uint32_t weights) override;
  bool lose_class(uint32_t part, const std::string &why) override;
  bool class_times(uint64_t (&spent)[kClasses]) override;

  PeerWatch &peers() { return peers_; }
  // The calls of ranks differ: that ends the communicator for all of them.
  Status refuse(Status status) {
    end(status);
    return status;
  }

  // False: a call may not start before other ranks have answered (control/agreement.h); look again.
  bool may_start(const Call &call);
  // Looks, while may_start() says no, for reasons to keep the weights as they are.
  void end_agreeing(int64_t waited_ms);
  // The weights of the classes of a call that starts, of `row` of the plan; once for each. `timed`: its kernels tell their times.
  uint32_t start_weights(const Call &call, uint32_t row, bool *timed);

  // Called by the watcher every few milliseconds: carries aborts to the kernels and their reports to the communicator.
  void look(bool at_peers);

 private:
  explicit CudaRank(const RankContext &context) : context_(context), peers_(context_) {}
  void defer_frees(bool ended);
  Status agree(Agreed *agreed);
  Status open_memory();
  Status map_arenas(const Descriptor &mine);
  void listen_for_loans(RankMemory *mine);
  void mark_by_address(Connectors *connectors);
  void begin_lending();
  Status read_copies(RankSettings *settings);
  void agree_on_copies(const std::vector<RankSettings> &settings, Agreed *agreed) const;
  Status decide_copies(const Agreed &agreed);
  Status make_copies(const Agreed &agreed);
  void look_at_copies();
  void leave_copies();
  void log_lending() const;
  void make_balancer(const Overrides &overrides);
  void watch_classes();
  void tell_times();
  uint32_t tuned_weights(const Program &program) const;  // 0: its own
  void end(const Status &status) { context_.segment->abort(status, context_.rank); }
  bool is_any_cut() const;
  void look_at_classes();
  void look_at_links(uint32_t lost);
  uint32_t choose_weights(const Call &call, uint32_t own);
  uint32_t start_copy_weights(const Call &call, bool captured);
  void do_without_times(const Call &call);
  void note_captured(uint32_t weights);
  Status describe(const Report &report, uint32_t channel) const;
  std::string describe_missing() const;

  struct TimedLaunch {
    uint64_t number;
    uint32_t row;  // of the plan
    uint32_t weights;
  };

  RankContext context_;
  PeerWatch peers_;
  Device *device_ = nullptr;
  std::shared_ptr<World> world_;
  uint32_t most_threads_ = 0;  // COLLC_THREADS
  uint32_t copies_from_ = 0;   // COLLC_COPY_ENGINES
  std::array<std::unique_ptr<StagedCopies>, kCopyLanes> copies_;  // by lane
  std::unique_ptr<PinnedMemory> host_slots_;
  Lending lending_;
  bool runs_direct_ = false;
  std::shared_ptr<Loans> loans_;  // null: it reads no buffers
  std::unique_ptr<DeferredFrees> frees_ = std::make_unique<DeferredFrees>();  // when this rank ends
  ConnectorMemory connectors_;
  KernelMemory memory_;
  RankLaunches launches_;
  Losses losses_;                       // classes of links that have failed
  std::atomic<uint32_t> in_graphs_{0};  // a bit for each class that calls which were captured hold
  uint32_t told_stale_ = 0;             // of the watcher
  std::shared_ptr<WatchedLinks> links_;  // of its GPU; null: not watched
  std::shared_ptr<WatchedLanes> lanes_;
  LaneLooks lane_looks_;  // of the watcher
  std::unique_ptr<Balancer> balancer_;  // null: the weights of calls do not change
  std::optional<uint32_t> forced_weights_;  // by force_weights(): then the last one of timed_calls_ alone is kept
  std::deque<TimedLaunch> timed_calls_;
  bool watched_ = false;
  bool reported_ = false;  // a kernel has run out of time, and the communicator knows
};

// Returns when each rank may start its call; all of them are of this thread.
void agree_on_weights(const std::vector<CudaRank *> &ranks, const std::vector<const Call *> &calls);

// The thread that looks at all ranks of the process; it starts with the first.
Status watch(CudaRank *rank);
void unwatch(CudaRank *rank);
// The same thread, for what is left of ended communicators.
Status keep_watching();
// Whether a call of any rank of this process has not ended; those of graphs aside.
bool any_kernel_runs();

}  // namespace collc::cuda
