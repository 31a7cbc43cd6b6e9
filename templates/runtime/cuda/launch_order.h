// Makes the kernels of all communicators of this process on one device begin one after the other, in the order of the program's
// calls: NCCL_LAUNCH_ORDER_IMPLICIT=1. Without it they begin when their streams allow (docs/cuda.md gives the reason).
//
// Owner: Device. Threads: any that launches; a mutex keeps the order. No call waits for the GPU, except begin().
#pragma once
#include <mutex>

#include "cuda/call_order.h"
#include "cuda/driver.h"

namespace collc::cuda {

// One kernel, of `blocks` x `threads`.
struct Grid {
  Function kernel;
  uint32_t blocks, threads, shared_bytes;
  bool is_cooperative;  // all blocks are resident at once, or none
};

// Launches a kernel after what is on the stream.
Status launch_grid(const Grid &grid, Stream stream, void **arguments, const char *what);

class LaunchOrder {
 public:
  // Of the current device. Once; more calls do nothing.
  Status begin();
  // The same as launch_grid, behind the launches before this one, by whatever thread and on whatever streams.
  Status launch(const Grid &grid, Stream stream, const StreamPlace &place, void **arguments, const char *what);

 private:
  Status launch_behind_the_begin(const Grid &grid, Stream stream, uint64_t id, void **arguments, const char *what);

  std::mutex mutex_;
  Event begun_ = nullptr;  // the latest launch outside of graphs has begun, with all its blocks
  bool says_begin_ = false;  // this driver can record that
  bool any_began_so_ = false;
  uint64_t latest_stream_ = 0;  // of that launch
  CallOrder calls_;  // what orders whole calls: in and behind graphs, and where the driver cannot say when one has begun
};

}  // namespace collc::cuda
