// Chunks of the protocol LL on their way between servers: kernels leave and find them as lines (collc/cuda/ll.h), in pinned
// memory; over the wire go the data alone.
//
// A line is 16 bytes, two words of 4 bytes of data below 4 of flag, each stored and loaded in one piece by kernels and couriers
// alike. Its flag is the number of its chunk, from 1, so whoever sees it has its data, in whatever order lines come, and no
// fence, tail or acquire is needed on either side: what crosses PCIe are posted writes of lines, and loads of lines. Before its
// lines a kernel says how many bytes they hold, in a word that has the number too.
//
// Flags come again after 2^32 chunks. As the kernels do on their side, couriers write a slot whole once in every 2^31.
#pragma once
#include <cstdint>
#include <vector>

#include "transport/fifo.h"
#include "wire/rails.h"

namespace collc {

class LinedSlots {
 public:
  static constexpr uint32_t kLineBytes = 16, kLineData = 8;

  // Of one half of a FIFO. `slot_bytes`: with flags. `flags`: the bits that a flag has.
  LinedSlots(const FifoEnd &end, uint32_t nslots, uint32_t slot_bytes, uint32_t flags = UINT32_MAX);

  uint32_t most() const { return slot_bytes_ / (kLineBytes / kLineData); }  // data of a chunk
  // Where the data of chunk `number` stand, apart from the lines: what is sent, or has come.
  // They are in the segment, as slots are, for cards write there as long as a connection is open.
  char *data(uint64_t number) const { return rooms_ + number % nslots_ * most(); }

  // For chunks that are written here. Takes the lines of chunk `number` that have come since the last look; true when it is
  // whole. `moved` is set if it was told or a line has come since then. Chunks come in their order.
  bool gather(uint64_t number, bool *moved);
  // The same without taking any.
  bool is_whole(uint64_t number) const;
  // Of a chunk that is whole.
  uint32_t bytes(uint64_t number) const { return bytes_[number % nslots_]; }

  // For chunks that are read here: shows what has come of chunk `number`; `last`: up to its end.
  void show(uint64_t number, ChunkRange range, bool last);

 private:
  uint32_t flag_of(uint64_t number) const { return static_cast<uint32_t>(number + 1) & flags_; }
  uint64_t *words(uint64_t number) const;
  bool is_told(uint64_t number, uint32_t *bytes) const;
  // Takes the lines from `first` on that are there, up to `end`, to where `data` begins, if it is not null; the first one that is not.
  uint32_t take(uint64_t number, uint32_t first, uint32_t end, char *data) const;

  char *slots_, *rooms_;
  const SlotLine *told_;
  uint32_t nslots_, slot_bytes_, flags_;
  std::vector<uint32_t> bytes_;  // by slot
  uint32_t gathered_ = 0;  // lines of the chunk that is gathered
  bool was_told_ = false;  // the same
};

}  // namespace collc
