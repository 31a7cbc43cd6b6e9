// Where a check of links has its data on a GPU: two buffers there, one in pinned memory between them and the host.
#include <sched.h>

#include <cstring>

#include "base/clock.h"
#include "cuda/deferred_frees.h"
#include "cuda/rank.h"

namespace collc::cuda {
namespace {

class GpuBench final : public Workbench {
 public:
  GpuBench(const Device &device, std::shared_ptr<Segment> segment, uint32_t rank)
      : device_(device), segment_(std::move(segment)), rank_(rank) {}
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
    return wait(kCopy);
  }
  Status get(void *to, uint64_t bytes) override {
    const Current current(device_.context);
    COLLC_RETURN_IF_FAILED(check(driver().copy_async(pinned_at_, buffers_[1], bytes, stream_), "copying"));
    COLLC_RETURN_IF_FAILED(wait(kCopy));
    std::memcpy(to, pinned_, bytes);
    return {};
  }
  Status wait(double seconds) override {
    const Current current(device_.context);
    const Driver &cu = driver();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(done_, stream_), "recording an event"));
    const int64_t start = now_ms();
    for (;;) {
      const Result result = cu.event_query(done_);
      // A kernel that gives up because the communicator is broken ends well.
      if (result != kNotReady && segment_->aborted()) return segment_->abort_status(rank_);
      if (result != kNotReady) return check(result, "waiting for a transfer");
      if (static_cast<double>(now_ms() - start) > seconds * 1e3)
        return fail(ncclRemoteError, "after %.0f s a transfer has not ended", seconds);
      sched_yield();
    }
  }

 private:
  static constexpr double kCopy = 60;  // seconds: between a GPU and its host
  const Device &device_;
  std::shared_ptr<Segment> segment_;
  uint32_t rank_;
  Address buffers_[2] = {};  // sent from, received into
  void *pinned_ = nullptr;
  Address pinned_at_ = 0;
  Stream stream_ = nullptr;
  Event done_ = nullptr;
};

}  // namespace

Status CudaRank::make_workbench(uint64_t bytes, std::unique_ptr<Workbench> *made) {
  auto bench = std::make_unique<GpuBench>(*device_, context_.segment, context_.rank);
  COLLC_RETURN_IF_FAILED(bench->allocate(bytes));
  *made = std::move(bench);
  return {};
}

}  // namespace collc::cuda
