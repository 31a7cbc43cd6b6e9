// Where the memory of a FIFO is, as the rank at one of its ends needs to know.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collc/cuda/layout.h"
#include "cuda/team_plan.h"

namespace collc::cuda {

// One connector (FIFO end) and the place of its memory for each protocol. `slots` and `tail` are offsets in the reader's arena,
// `head` in the writer's arena. If the memory of the pair or of the FIFO is pinned host memory, all three are offsets in the
// pair's region.
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
  uint32_t turn;  // it shares the memory of the FIFO that is this many before it
  uint32_t turns;
  TeamPlace team;  // where its slots are, if a switch knows them by a multicast address
  Memory memory[kProtocols];
};

}  // namespace collc::cuda
