// One context of a GPU, mostly its primary context, with the kernels in it.
//
// Owner: the process; a Device stays until the process ends. Threads: any; it does not change after current_device() has made
// it. Loading the kernels may wait for kernels that run, so it happens at creation.
#pragma once
#include <memory>
#include <vector>

#include "collc/cuda/layout.h"
#include "cuda/driver.h"
#include "cuda/launch_order.h"

namespace collc::cuda {

struct Device {
  DeviceNumber number = 0;
  Context context = nullptr;
  unsigned long long context_id = 0;
  Uuid uuid = {};
  int multiprocessors = 0;
  bool cooperative = false;
  int capability = 0;  // 90: sm_90
  // The kernels by protocol, then by kernel type (layout.h), without LL128 if the GPU lacks it.
  std::vector<Function> kernels;
  // Those whose steps are written out, in the same order, null where the library has none.
  std::vector<Function> written;
  std::vector<Function> in_switch;  // by kernel type; empty where the library or the GPU has none
  std::vector<Function> direct;     // by kernel type: in the place of Simple's; empty where the library has none
  Function exchange = nullptr;  // the kernel of transfers
  std::unique_ptr<LaunchOrder> order = std::make_unique<LaunchOrder>();

  bool has_ll128() const { return capability >= 70; }
  Function kernel(uint32_t protocol, uint32_t type) const { return kernels[protocol * kKernelTypes + type]; }
  Function written_kernel(uint32_t protocol, uint32_t type) const {
    const size_t at = protocol * kKernelTypes + type;
    return at < written.size() ? written[at] : nullptr;
  }
  std::vector<Function> collectives() const;  // all but those in a switch
  // Blocks of `threads` threads that run at once, whatever the kernel; 0 if a kernel cannot run so.
  uint32_t resident_blocks(uint32_t threads, uint32_t shared_bytes) const;
};

// Returns true if this library's kernels count where their time goes (`collc compile --counters`).
bool kernels_count();
// Returns true if this library has kernels that read buffers of other ranks (`collc compile --direct`).
bool kernels_read_buffers();
// The variants of channels that this library's kernels have written out, for mark_variants; null: none, or COLLC_SPECIALISED=0.
const uint32_t *written_variants();
// Makes the primary context of a device current for this thread.
Status make_current(int number);
// The device of this thread's context; 0 if it has none yet.
Status current_number(int *number);
// The device of the current context, with all kernels loaded: done at creation, never while a kernel may spin.
Status current_device(Device **device);
// Returns true if the context of the device still exists. cudaDeviceReset destroys it, and the next one may have the same
// handle.
bool is_alive(const Device &device);
// The device of this process's numbering that a GPU is; false if it sees no such GPU.
bool find_visible(const Uuid &uuid, DeviceNumber *number);
// Allows kernels with so much shared memory.
Status allow_shared(const Device &device, uint32_t bytes);

// Returns true if the driver knows an attribute of the GPU and the attribute is not 0.
inline bool has_attribute(const Device &device, int attribute) {
  int value = 0;
  return driver().device_attribute(&value, attribute, device.number) == 0 && value != 0;
}

}  // namespace collc::cuda
