// Which FIFOs of a plan pass through host memory of their own accord.
#pragma once
#include <algorithm>
#include <vector>

#include "collc/tables.h"
#include "cuda/pinned_plan.h"
#include "plan/weights.h"

namespace collc::cuda {

// The FIFOs of an allocation that programs of several classes give to others than the fastest one. NVLink joins the GPUs, and a
// program cannot choose another way between their memories; so one GPU writes to host memory.
struct ClassFifos {
  std::vector<bool> staged;   // of pcie: the other GPU reads there
  std::vector<bool> wired;    // of net: a network card takes it from there to host memory of the other GPU (net_halves.h)
  uint32_t wired_chunk = 0;   // bytes of the largest chunk of programs with such FIFOs; 0: there are none
};

// Programs with a part over net run only over Simple.
inline bool is_wired(const Program &program) { return program.net_weight != 0; }

inline ClassFifos class_fifos(const Tables &tables, const Allocation &allocation) {
  ClassFifos found{std::vector<bool>(allocation.nfifos), std::vector<bool>(allocation.nfifos)};
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = tables.programs[allocation.first_program + p];
    if (program_weights(program) == 0) continue;
    if (is_wired(program)) found.wired_chunk = std::max(found.wired_chunk, program.chunk_bytes);
    const RankChannel *places = tables.rank_channels + program.first_rank_channel;
    for (uint32_t c = 0; c < allocation.nranks * program.nchannels; ++c)
      for (uint32_t s = 0; s < places[c].nsteps; ++s) {
        const Step &step = tables.steps[places[c].first_step + s];
        const uint16_t part = tables.shares[program.first_share + step.share].part;
        if (part == kNvlinkPart) continue;
        std::vector<bool> &fifos = part == kNetPart ? found.wired : found.staged;
        for (uint32_t i = 0; i < step.nsend; ++i) fifos[tables.refs[step.first_ref + step.nrecv + i].fifo] = true;
      }
  }
  return found;
}

// The pairs of ranks that such FIFOs join.
inline PinnedPairs staged_pairs(const Tables &tables, const Allocation &allocation, const std::vector<bool> &staged) {
  PinnedPairs pairs;
  for (uint32_t f = 0; f < allocation.nfifos; ++f) {
    const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
    for (uint32_t r = 0; staged[f] && r < fifo.nreaders; ++r)
      pairs.insert(std::minmax(fifo.src, tables.fifo_readers[fifo.first_reader + r]));
  }
  return pairs;
}

}  // namespace collc::cuda
