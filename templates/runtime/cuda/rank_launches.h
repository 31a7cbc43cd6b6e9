// The launches of one rank: the threads of a block, the order of its calls on all streams, and the wait for calls to end.
//
// Owner: CudaRank. Threads: the thread that makes a call launches it; the watcher asks runs() and has_graphs().
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "cuda/call_order.h"
#include "cuda/deferred_frees.h"
#include "cuda/device.h"
#include "cuda/world.h"

namespace collc::cuda {

class RankLaunches final : public AsyncCalls {
 public:
  // Once, with the device's context current. `in_call_order`: kernels of one GPU begin in the order of their calls.
  Status open(Device *device, bool in_call_order);
  // Sets the threads of a block: halves the number from `most_threads` (COLLC_THREADS) until the blocks of all ranks that share
  // the GPU are resident at once. A rank that shares its GPU with none needs one resident block. Fails below kMinThreads.
  Status choose_threads(const World &world, uint32_t most_threads);
  // The same for a communicator of one rank. Cannot fail.
  void choose_threads_alone();
  uint32_t threads() const { return threads_; }

  // Launches a kernel of the rank's calls, or of the calls of several ranks on its GPU. Must be called between follow() and
  // note() of order().
  Status launch(const Grid &grid, Stream stream, const StreamPlace &place, void **arguments, const char *what) const {
    return in_call_order_ ? device_->order->launch(grid, stream, place, arguments, what)
                          : launch_grid(grid, stream, arguments, what);
  }
  CallOrder &order() { return order_; }
  // An event for the caller to order streams with. Each use records it anew.
  Event ready() const { return ready_; }

  // Returns true if the latest call has not ended. A reset of the GPU has ended all calls.
  bool runs() const { return is_alive(*device_) && order_.runs(); }
  // Returns true if graphs with calls of this rank exist. Such calls run whenever a graph is launched.
  bool has_graphs() const { return order_.graphs()->any(); }
  // Blocks until the calls of this rank have ended, but not for other communicators: their kernels may wait for calls that this
  // thread makes later. Returns false 500 ms after `stopped` says true if a call still runs: it stands behind others and has
  // not begun.
  bool wait_until_ended(const std::function<bool()> &stopped) const;
  bool has_calls() const override;
  void wait_for_aborted() const override;

  // Hands the events to `frees` after the last call. If the calls have not `ended`, or graphs with calls exist, `frees` also
  // waits for them.
  void leave(DeferredFrees *frees, bool ended);

 private:
  Device *device_ = nullptr;
  bool in_call_order_ = false;
  uint32_t threads_ = 0;
  Event ready_ = nullptr;
  CallOrder order_;
};

}  // namespace collc::cuda
