// Where the memory of a FIFO is, as the rank at one of its ends needs to know.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collc/cuda/layout.h"
#include "cuda/team_plan.h"

namespace collc::cuda {

// One FIFO end and where its memory is for each protocol. `slots` and `tail` are offsets in the reader's arena, `head` in
// the writer's; or all three in the region of the pair, where its memory or that of the FIFO is pinned host memory.
struct EndPlace {
  struct Memory {
    bool used = false;  // by a program that runs over the protocol
    size_t slots = 0;
    size_t tail = 0;
    size_t head = 0;
    uint32_t slot_bytes = 0;  // as the largest chunk of those programs needs it
  };
  uint32_t fifo;
  uint32_t reader;   // which of the FIFO's readers
  uint32_t peer;     // the rank at the other end
  uint32_t nslots;
  bool writes;
  bool staged;       // in pinned memory, whatever the pair reaches: of the class pcie
  bool leaves;  // each of the two has a half: they are on different servers (wire_halves.h), or of the class net (net_halves.h)
  uint32_t turn;  // its memory is that of the FIFO so many before
  uint32_t turns;
  TeamPlace team;  // where its slots are, if a switch knows them by a multicast address
  Memory memory[kProtocols];
};

}  // namespace collc::cuda
