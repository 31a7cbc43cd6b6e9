// The sources and destinations of one chunk of one step.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/copy.h"
#include "host/channel.h"
#include "transport/fifo.h"
#include "transport/slot_ways.h"

namespace collc {

inline void copy_bytes(void *to, const void *from, uint64_t bytes, uint32_t way) {
  if (way == kPastCaches)
    stream(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

// A copy of a rank's input to its output. It follows after the chunks that other ranks wait for are published.
struct OwnCopy {
  const void *from = nullptr;
  void *to = nullptr;
  uint64_t bytes = 0;

  void run(uint32_t way) {
    if (to != from) copy_bytes(to, from, bytes, way);
    bytes = 0;
  }
};

struct Operands {
  const void *sources[kMostPeers + 1];
  bool is_scaled[kMostPeers + 1];  // of the sources: to be multiplied by the factor of the sum
  void *dests[kMostPeers + 1];
  uint8_t marks[kMostPeers + 1];  // bits for the tags of the chunks that are sent
  uint32_t nsources = 0, ndests = 0;
  FifoEnd *slots[kMostPeers + 1];  // of the dests: the FIFO whose slot it is; null: another place
  uint32_t ways[kMostPeers + 1];  // of the dests: a SlotWay
  bool output_is_read = false;  // by others, as it stands in the output

  void add_source(const void *source, bool scaled) {
    is_scaled[nsources] = scaled;
    sources[nsources++] = source;
  }

  void add(void *dest, FifoEnd *slot, uint32_t way) {
    slots[ndests] = slot;
    ways[ndests] = way;
    dests[ndests++] = dest;
  }

  // Puts first the dests that go past the caches, as Finish::streamed has them, and says how many they are: slots before other
  // places, all aligned alike.
  uint32_t past_first() {
    uint32_t past = 0;
    for (const bool slot : {true, false}) {
      for (uint32_t i = past; i < ndests; ++i) {
        if (ways[i] != kPastCaches || (slots[i] != nullptr) != slot || (past != 0 && !aligned_alike(dests[i], dests[0])))
          continue;
        std::swap(dests[i], dests[past]);
        std::swap(slots[i], slots[past]);
        std::swap(ways[i], ways[past]);
        ++past;
      }
    }
    return past;
  }

 private:
  static bool aligned_alike(const void *a, const void *b) {
    return (reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b)) % kLine == 0;
  }
};

}  // namespace collc
