// NVTX ranges: with NVTX_INJECTION64_PATH, which profilers such as Nsight Systems set, every call is a range of the thread that
// makes it: on the host target until its buffers are done, on the CUDA target until it is on its stream. Without the variable
// a call costs one load for this.
#pragma once
#include <atomic>
#include <cstddef>

#include "plan/call.h"

namespace collc {

// Loads the library that the variable names and offers it our ranges, once for each process. NVTX does without what cannot be
// loaded, and so do we: it stands in the log.
void offer_ranges();

extern std::atomic<int (*)(const char *)> push_range;  // null: nobody listens

class CallRange {
 public:
  // `call`: counted. Of a group of several calls, there is one range.
  explicit CallRange(const Call &call, size_t calls = 1) {
    if (push_range.load(std::memory_order_acquire) != nullptr) begin(call, calls);
  }
  ~CallRange() {
    if (open_) end();
  }
  CallRange(const CallRange &) = delete;
  CallRange &operator=(const CallRange &) = delete;

 private:
  void begin(const Call &call, size_t calls) noexcept;
  void end() noexcept;
  bool open_ = false;
};

}  // namespace collc
