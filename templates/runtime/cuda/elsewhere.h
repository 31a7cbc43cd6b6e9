// The facts of a plan about ranks on other servers. Proxies send them the chunks that kernels write into pinned host memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "collc/cuda/layout.h"
#include "collc/tables.h"

namespace collc::cuda {

struct EndPlace;

// Addresses of a half, or of a lane that leads to another server.
struct HalfPlaces {
  uint64_t slots, tail, head, chunk_bytes;
};

// The FIFOs of an allocation that programs over LL use. FIFOs between servers have halves for LL.
struct LinedFifos {
  std::vector<bool> uses;    // by FIFO of the allocation
  uint32_t chunk_bytes = 0;  // of the largest of these programs' chunks; 0: there are none
};

// Calls `see` with each FIFO that a program writes to.
template <class See>
void for_each_fifo(const Tables &tables, const Allocation &allocation, const Program &program, See see) {
  const RankChannel *const places = tables.rank_channels + program.first_rank_channel;
  for (uint32_t c = 0; c < allocation.nranks * program.nchannels; ++c)
    for (uint32_t s = 0; s < places[c].nsteps; ++s) {
      const Step &step = tables.steps[places[c].first_step + s];
      for (uint32_t i = 0; i < step.nsend; ++i) see(tables.refs[step.first_ref + step.nrecv + i].fifo);
    }
}

inline LinedFifos find_lined(const Tables &tables, const Allocation &allocation) {
  LinedFifos found{std::vector<bool>(allocation.nfifos), 0};
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = tables.programs[allocation.first_program + p];
    if (program.protocol != kLL) continue;
    found.chunk_bytes = std::max(found.chunk_bytes, program.chunk_bytes);
    for_each_fifo(tables, allocation, program, [&](uint32_t fifo) { found.uses[fifo] = true; });
  }
  return found;
}

// The servers of the plan's ranks, and the layout of the queues of transfers between servers.
struct Elsewhere {
  std::vector<uint32_t> machine;  // by rank; empty: all are on one
  uint32_t queue_slots = 0;
  uint32_t queue_slot_bytes = 0;
  LinedFifos lines;

  bool any() const { return !machine.empty(); }
  bool apart(uint32_t a, uint32_t b) const { return any() && machine[a] != machine[b]; }
  // Returns true if all FIFOs of a program between servers have halves for LL.
  bool has_lines(const Tables &tables, const Allocation &allocation, const Program &program) const {
    bool all = lines.chunk_bytes != 0;
    for_each_fifo(tables, allocation, program, [&](uint32_t number) {
      const Fifo &fifo = tables.fifos[allocation.first_fifo + number];
      all = all && (lines.uses[number] || !apart(fifo.src, tables.fifo_readers[fifo.first_reader]));
    });
    return all;
  }
};

// For plans without other servers.
struct NoHalves {
  HalfPlaces fifo(const EndPlace &, uint32_t) const { return {}; }
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
