// What a plan knows of ranks on other servers, to which couriers bring what kernels write into pinned host memory.
#pragma once
#include <cstdint>
#include <vector>

#include "collc/cuda/layout.h"

namespace collc::cuda {

struct EndPlace;

// Addresses of a half, or of a lane that leads to another server.
struct HalfPlaces {
  uint64_t slots, tail, head, chunk_bytes;
};

// Which ranks of the plan are on other servers, and what the queues of transfers between servers look like.
struct Elsewhere {
  std::vector<uint32_t> machine;  // by rank; empty: all are on one
  uint32_t queue_slots = 0;
  uint32_t queue_slot_bytes = 0;

  bool any() const { return !machine.empty(); }
  bool apart(uint32_t a, uint32_t b) const { return any() && machine[a] != machine[b]; }
};

// Where nothing leads to other servers.
struct NoHalves {
  HalfPlaces fifo(const EndPlace &) const { return {}; }
  HalfPlaces queue(uint32_t, uint32_t) const { return {}; }
};

inline void take_half(const HalfPlaces &half, bool writes, FifoEnd *end) {
  auto *const tail = reinterpret_cast<uint64_t *>(half.tail), *const head = reinterpret_cast<uint64_t *>(half.head);
  end->slots = reinterpret_cast<char *>(half.slots);
  end->wait_on = writes ? head : tail;
  end->publish_to = writes ? tail : head;
  end->chunk_bytes = writes ? reinterpret_cast<uint64_t *>(half.chunk_bytes) : nullptr;
}

}  // namespace collc::cuda
