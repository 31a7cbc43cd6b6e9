// Buffers of ncclMemAlloc, which ranks in other processes can map: one copy instead of two, and reductions straight from
// where the data stands to where they belong.
//
// A buffer is a memfd of its own. Behind its last page lies one more, with a random number that is the buffer's and a flag
// that its owner sets when it frees the buffer. A process that receives number, descriptor and size opens the file below
// /proc/<process>/fd, maps it once, and compares the numbers: a descriptor that has become another file is never read. A
// mapping keeps the memory, so freeing a buffer cannot hurt its readers; they unmap it once they see the flag.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/status.h"

namespace collc {

// How another process finds a buffer.
struct BufferHandle {
  uint64_t number = 0;  // 0: the memory is no such buffer
  uint64_t base = 0;    // in the owner's process
  uint64_t bytes = 0;
  int32_t descriptor = -1;
  uint32_t reserved = 0;

  bool holds(uint64_t address, uint64_t length) const {
    return number != 0 && address >= base && length <= bytes && address - base <= bytes - length;
  }
};

// Memory of `bytes`; private to the process where the system gives no other; null if there is none.
void *allocate_buffer(size_t bytes);
// Gives it back; null is nothing. ncclInvalidArgument for any other pointer than those that are to be given back.
Status release_buffer(void *memory);
// True if this process has such buffers.
extern std::atomic<uint32_t> live_buffers;
inline bool has_buffers() { return live_buffers.load(std::memory_order_relaxed) != 0; }
// Puts other memory with the same contents under these bytes of a buffer, so that processes which have mapped it can no
// longer write there; the buffer is not offered again. False if there is no memory for that.
bool detach_buffer(const void *address, uint64_t bytes);

// Looks buffers of this process up, and remembers the last answers: for one caller, who asks about the same ones again.
class BufferLookup {
 public:
  const BufferHandle &find(const void *address, uint64_t bytes);

 private:
  BufferHandle last_;
  uint64_t last_missed_ = 0;     // an address in none
  uint64_t state_ = UINT64_MAX;  // of all buffers, when these were found
};

// The buffers of other processes that a rank has mapped.
class MappedBuffers {
 public:
  MappedBuffers() = default;
  ~MappedBuffers();
  MappedBuffers(const MappedBuffers &) = delete;
  MappedBuffers &operator=(const MappedBuffers &) = delete;

  // Where `address` of the process `process` lies here, mapping the buffer if that is new; null if it cannot be had.
  char *translate(int process, const BufferHandle &handle, uint64_t address, uint64_t bytes);
  // Checks this many of the buffers, in turn, and unmaps those that their owners have freed.
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
