// The data of a check of links on a GPU: two buffers there, and one in pinned memory between them and the host.
#include <sched.h>

#include <cstring>

#include "base/clock.h"
#include "cuda/deferred_frees.h"
#include "cuda/rank.h"

namespace collc::cuda {
namespace {

class GpuBench final : public LinkBench {
 public:
  // `world`: null in a communicator of one rank.
  GpuBench(const RankContext &context, const Device &device, std::shared_ptr<const World> world)
      : context_(context), device_(device), world_(std::move(world)) {}
  ~GpuBench() override {
    const Current current(device_.context);
    const Driver &cu = driver();
    if (stream_ != nullptr) cu.stream_destroy(stream_);
    if (done_ != nullptr) cu.event_destroy(done_);
    auto frees = std::make_unique<DeferredFrees>();
    for (const Address at : buffers_)
      if (at != 0) frees->free_memory(&device_, at);
    if (pinned_ != nullptr) frees->free_pinned(&device_, pinned_);
    dispose(std::move(frees));
  }
  GpuBench(const GpuBench &) = delete;
  GpuBench &operator=(const GpuBench &) = delete;

  Status allocate(uint64_t bytes) {
    const Current current(device_.context);
    const Driver &cu = driver();
    for (Address &at : buffers_)
      COLLC_RETURN_IF_FAILED(check(cu.allocate(&at, bytes), "allocating GPU memory for COLLC_CHECK"));
    COLLC_RETURN_IF_FAILED(check(cu.allocate_host(&pinned_, bytes, kHostPortableMapped), "allocating pinned memory"));
    COLLC_RETURN_IF_FAILED(check(cu.host_address(&pinned_at_, pinned_, 0), "mapping pinned memory"));
    COLLC_RETURN_IF_FAILED(check(cu.stream_create(&stream_, kStreamNonBlocking), "creating a stream"));
    return check(cu.event_create(&done_, kEventDisableTiming), "creating an event");
  }
  void *buffer(bool sends) override { return reinterpret_cast<void *>(buffers_[sends ? 0 : 1]); }
  cudaStream_t stream() override { return reinterpret_cast<cudaStream_t>(stream_); }
  Status put(bool sends, const void *from, uint64_t bytes) override {
    const Current current(device_.context);
    std::memcpy(pinned_, from, bytes);
    COLLC_RETURN_IF_FAILED(check(driver().copy_async(buffers_[sends ? 0 : 1], pinned_at_, bytes, stream_), "copying"));
    return wait();
  }
  Status get(void *to, uint64_t bytes) override {
    const Current current(device_.context);
    COLLC_RETURN_IF_FAILED(check(driver().copy_async(pinned_at_, buffers_[1], bytes, stream_), "copying"));
    COLLC_RETURN_IF_FAILED(wait());
    std::memcpy(to, pinned_, bytes);
    return {};
  }
  Status wait() override {
    const Current current(device_.context);
    const Driver &cu = driver();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(done_, stream_), "recording an event"));
    const int64_t start = now_ms();
    for (;;) {
      const Result result = cu.event_query(done_);
      // A kernel that gives up because the communicator is broken ends well.
      if (result != kNotReady && context_.segment->aborted()) return context_.segment->abort_status(context_.rank);
      if (result != kNotReady) return check(result, "waiting for a transfer");
      if (static_cast<double>(now_ms() - start) > kMaxWaitSeconds * 1e3)
        return fail(ncclRemoteError, "after %.0f s a transfer has not ended", kMaxWaitSeconds);
      sched_yield();
    }
  }
  // Ranks of one process that share a GPU transfer in one launch, which needs the calls of both.
  bool can_transfer(uint32_t peer) const override { return !world_->shares(context_.placement.plan_rank[peer], &device_); }
  bool read_address(uint32_t, uint64_t, void *, uint64_t, Status *) override { return false; }

 private:
  const RankContext &context_;
  const Device &device_;
  std::shared_ptr<const World> world_;
  Address buffers_[2] = {};  // sent from, received into
  void *pinned_ = nullptr;
  Address pinned_at_ = 0;
  Stream stream_ = nullptr;
  Event done_ = nullptr;
};

}  // namespace

Status CudaRank::make_link_bench(uint64_t bytes, std::unique_ptr<LinkBench> *made) {
  auto bench = std::make_unique<GpuBench>(context_, *device_, world_);
  COLLC_RETURN_IF_FAILED(bench->allocate(bytes));
  *made = std::move(bench);
  return {};
}

}  // namespace collc::cuda
