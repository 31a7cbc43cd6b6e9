// Chunks of the protocol LL between servers. Kernels write and read them as lines with flags (collc/cuda/ll.h) in pinned
// memory; only the data go over the wire.
//
// A line is 16 bytes: two words, each with 4 bytes of data below 4 bytes of flag. Kernels and proxy threads store and load
// each word in one piece. The flag is the number of the chunk, counted from 1, so a thread that sees the flag has the data,
// in whatever order lines arrive. Therefore neither side needs a fence, a tail or an acquire load; all accesses are relaxed.
// Only posted writes of lines and loads of lines cross PCIe. Before its lines, a kernel stores their number of bytes, in a
// word that contains the chunk's number, too.
//
// Flags repeat after 2^32 chunks. Like the kernels, proxy threads write each slot completely once in 2^31 chunks.
//
// Only the proxy thread uses the object.
#pragma once
#include <cstdint>
#include <vector>

#include "transport/fifo.h"
#include "wire/rails.h"

namespace collc {

class LinedSlots {
 public:
  static constexpr uint32_t kLineBytes = 16, kLineData = 8;

  // One half of a FIFO. `slot_bytes` includes flags. `flags`: the bits that a flag has (fewer in tests).
  LinedSlots(const FifoEnd &end, uint32_t nslots, uint32_t slot_bytes, uint32_t flags = UINT32_MAX);

  uint32_t max_bytes() const { return slot_bytes_ / (kLineBytes / kLineData); }  // maximum bytes of a chunk's data
  // Returns the memory for the data of chunk `number` without flags, which is sent or has come. It is in the segment, like
  // slots, because NICs write there as long as a connection is open.
  char *data(uint64_t number) const { return rooms_ + number % nslots_ * max_bytes(); }

  // For chunks that are written here, in their order. Copies the lines of chunk `number` that have come since the last call
  // to data(). Returns true when the chunk is complete. Sets `moved` if its size or a line has come since the last call.
  bool gather(uint64_t number, bool *moved);
  // Returns the same, but copies nothing.
  bool is_whole(uint64_t number) const;
  // Returns the bytes of a complete chunk.
  uint32_t bytes(uint64_t number) const { return bytes_[number % nslots_]; }

  // For chunks that are read here: publishes the bytes `range` of chunk `number` as lines. `last`: they are the end of the
  // chunk.
  void show(uint64_t number, ChunkRange range, bool last);

 private:
  uint32_t flag_of(uint64_t number) const { return static_cast<uint32_t>(number + 1) & flags_; }
  uint64_t *words(uint64_t number) const;
  bool has_size(uint64_t number, uint32_t *bytes) const;
  // Copies the lines from `first` up to `end` whose flags are there to `data` (the memory of the whole chunk), if it is not
  // null. Returns the first line that is not there.
  uint32_t take(uint64_t number, uint32_t first, uint32_t end, char *data) const;

  char *slots_, *rooms_;
  const SlotLine *sizes_;
  uint32_t nslots_, slot_bytes_, flags_;
  std::vector<uint32_t> bytes_;  // by slot
  uint32_t copied_lines_ = 0;  // lines of the current chunk that have been copied
  bool has_seen_size_ = false;  // the size of the current chunk has been seen
};

}  // namespace collc
