// One rank on the CUDA target. Its parts own the state: this class creates them in order, passes to each what it needs of the
// others, and ends them.
//
// Owner: Communicator. Threads: one thread at a time makes calls (communicator.h: Owner); the watcher calls look() until the
// destructor. open() is collective: it blocks until the other ranks call it. The destructor blocks until the calls of the rank
// have ended, after an abort for 500 ms at most.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cuda/connector_memory.h"
#include "cuda/kernel_memory.h"
#include "cuda/path_shares.h"
#include "cuda/peer_watch.h"
#include "cuda/rank_copies.h"
#include "cuda/rank_launches.h"
#include "cuda/registered_buffers.h"
#include "cuda/world.h"

namespace collc::cuda {

class CudaRank final : public RankBackend {
 public:
  static Status open(const RankContext &context, std::unique_ptr<RankBackend> *made);
  ~CudaRank() override;

  const RankContext &context() const { return context_; }
  const Device &device() const { return *device_; }
  // Null in a communicator of one rank.
  const std::shared_ptr<World> &world() const { return world_; }
  const KernelMemory &memory() const { return memory_; }
  const RankCopies &copies() const { return copies_; }
  PeerWatch &peers() { return peers_; }

  std::vector<ChannelTimes> times() const override;
  uint32_t protocol_of(const Program &program, uint64_t bytes) const override;
  bool can_run(const Program &program, const Call *call) const override;
  uint64_t gpu_bytes() const override;
  Status make_link_bench(uint64_t bytes, std::unique_ptr<LinkBench> *made) override;
  PathShares *path_classes() override { return &shares_; }
  RegisteredBuffers *buffers() override { return &buffers_; }
  RankLaunches *async_calls() override { return &launches_; }

  // Ends the communicator for all ranks.
  void end(const Status &why) const { context_.segment->abort(context_.segment->with_differing_calls(why), context_.rank); }
  // Called by the watcher every few milliseconds, and `at_peers` every 100 ms: carries aborts to the kernels and their reports
  // to the communicator.
  void look(bool at_peers);

 private:
  explicit CudaRank(const RankContext &context)
      : context_(context), peers_(context_), buffers_(context_, launches_.order()), copies_(context_), shares_(context_) {}
  Status agree(Agreed *agreed, uint32_t *most_threads);
  Status open_memory();
  void look_at_copies() const;
  void defer_frees(bool ended);

  const RankContext context_;
  Device *device_ = nullptr;
  std::shared_ptr<World> world_;
  PeerWatch peers_;
  RankLaunches launches_;
  ConnectorMemory connectors_;
  KernelMemory memory_;
  RegisteredBuffers buffers_;
  RankCopies copies_;
  PathShares shares_;
  std::unique_ptr<DeferredFrees> frees_ = std::make_unique<DeferredFrees>();  // takes what outlives this rank
  bool is_watched_ = false;  // the watcher knows this rank: its creation is complete
  bool has_reported_ = false;  // a kernel has run out of time, and the communicator knows
};

// Has the watcher, a thread that looks at all ranks of the process, look at this one. It starts with the first rank.
Status watch(CudaRank *rank);
void unwatch(CudaRank *rank);
// Has the same thread free what ended communicators leave.
Status keep_watching();
// Returns true if a call of any rank of this process has not ended, calls of graphs aside.
bool any_kernel_runs();

}  // namespace collc::cuda
