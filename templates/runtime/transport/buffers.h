// Buffers of ncclMemAlloc on the host target. Ranks in other processes can map them, so that a call needs one copy instead of
// two, and reductions read and write the users' buffers directly.
//
// Each buffer is a memfd. One page follows its last page; it holds the buffer's random number and a flag that the owner sets
// when it frees the buffer. A process that receives number, descriptor and size opens /proc/PROCESS/fd/DESCRIPTOR, maps it
// once, and compares the numbers, so that it never reads a descriptor that has become another file. The mapping keeps the
// memory, so readers are safe when the owner frees the buffer; they unmap it once they see the flag.
//
// Any thread may allocate and free buffers; a mutex guards the list of them. A BufferLookup and a MappedBuffers belong to one
// rank, and only the thread that runs this rank uses them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/status.h"

namespace collc {

// The data that another process needs to map a buffer.
struct BufferHandle {
  uint64_t number = 0;  // random; 0: the memory is not such a buffer
  uint64_t base = 0;    // address in the owner's process
  uint64_t bytes = 0;
  int32_t descriptor = -1;
  uint32_t reserved = 0;

  bool holds(uint64_t address, uint64_t length) const {
    return number != 0 && address >= base && length <= bytes && address - base <= bytes - length;
  }
};

// Returns memory of `bytes`; null if there is none. If the system gives no shared memory, returns memory that is private to
// the process.
void *allocate_buffer(size_t bytes);
// Frees memory of allocate_buffer(); null is ignored. Fails with ncclInvalidArgument for any other pointer.
Status release_buffer(void *memory);
// Number of buffers of this process that other processes can map.
extern std::atomic<uint32_t> live_buffers;
inline bool has_buffers() { return live_buffers.load(std::memory_order_relaxed) != 0; }
// Replaces the pages under these bytes of a buffer by private memory with the same contents, so that processes that have
// mapped the buffer can no longer write there. The buffer is not offered to other ranks again. Returns false if there is no
// memory; true also if the bytes are in no buffer.
bool detach_buffer(const void *address, uint64_t bytes);

// Looks up the buffers of this process for one caller, which mostly asks for the same buffers again, and remembers the last
// answers.
class BufferLookup {
 public:
  const BufferHandle &find(const void *address, uint64_t bytes);

 private:
  BufferHandle last_;
  uint64_t last_missed_ = 0;     // the last address that was found in no buffer
  uint64_t state_ = UINT64_MAX;  // Registry::state of the remembered answers
};

// The buffers of other processes that a rank has mapped.
class MappedBuffers {
 public:
  MappedBuffers() = default;
  ~MappedBuffers();
  MappedBuffers(const MappedBuffers &) = delete;
  MappedBuffers &operator=(const MappedBuffers &) = delete;

  // Returns where `address` of process `process` lies in this process, and maps the buffer if it is new. Returns null if it
  // cannot be mapped.
  char *translate(int process, const BufferHandle &handle, uint64_t address, uint64_t bytes);
  // Checks the next `looks` of the mapped buffers, round robin, and unmaps those that their owners have freed.
  void tidy(size_t looks);

 private:
  struct Mapping {
    char *at;
    uint64_t bytes;
  };

  std::unordered_map<uint64_t, Mapping> all_;  // by number
  size_t turn_ = 0;
};

}  // namespace collc
