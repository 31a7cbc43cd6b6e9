// GPU memory that other processes reach by a file descriptor (the driver's virtual memory management): for containers that
// forbid IPC handles, or have separate PID namespaces. The processes pass the descriptors over a local socket.
#pragma once
#include <memory>
#include <vector>

#include "base/descriptor.h"
#include "cuda/device.h"
#include "executor/backend.h"

namespace collc::cuda {

// A range of addresses of this process, and the memory in it.
struct VirtualMemory {
  Address at = 0;
  size_t bytes = 0;
};

// Memory that can be handed to other processes as long as this object is there; whoever has mapped it keeps the memory.
class ShareableMemory {
 public:
  explicit ShareableMemory(MemoryHandle handle) : handle_(handle) {}
  ~ShareableMemory() { driver().release_handle(handle_); }
  ShareableMemory(const ShareableMemory &) = delete;
  ShareableMemory &operator=(const ShareableMemory &) = delete;
  // A new one each time; none if the driver or the process has none left.
  Descriptor describe() const;

 private:
  MemoryHandle handle_;
};

// Returns true if the driver can make descriptors of this GPU's memory.
bool has_descriptors(const Device &device);
// Memory of the GPU, which it may touch, and its descriptor. Takes whole pages of the driver's (2 MiB).
Status make_virtual(const Device &device, size_t bytes, VirtualMemory *made, Descriptor *file);
// The same, whose descriptors are made later.
Result make_shareable(const Device &device, size_t bytes, VirtualMemory *made, std::shared_ptr<const ShareableMemory> *shared);
// The memory of another process, which this GPU may touch from now on; false if the driver does not allow that.
bool map_virtual(const Device &device, int file, size_t bytes, VirtualMemory *mapped);
// Another GPU of this process may touch it too; peer access of contexts does not count here.
bool grant(const Device &device, const VirtualMemory &memory);
// Waits for no kernel, neither here nor where else the memory is mapped: it is freed with its last mapping. False if the driver
// refuses; then it may be called again.
bool unmap(const VirtualMemory &memory);

// Collective among the ranks of a communicator, while it is made. Each rank gives a descriptor, or none, and gets the
// descriptors of ranks in other processes, by NCCL rank.
Status exchange_descriptors(const RankContext &context, const Descriptor &mine, std::vector<Descriptor> *theirs);

}  // namespace collc::cuda
