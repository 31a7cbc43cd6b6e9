// Which FIFOs of a plan pass through host memory of their own accord.
#pragma once
#include <vector>

#include "collc/tables.h"
#include "plan/weights.h"

namespace collc::cuda {

// By FIFO of an allocation: whether its slots are in pinned host memory even where the GPUs reach each other. NVLink joins
// these, and a program cannot choose PCIe for the way between their memories; so what a program of several classes gives to
// PCIe is written to host memory by one GPU and read from there by the other.
inline std::vector<bool> staged_fifos(const Tables &tables, const Allocation &allocation) {
  std::vector<bool> staged(allocation.nfifos, false);
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = tables.programs[allocation.first_program + p];
    if (own_weights(program) == 0) continue;
    const RankChannel *places = tables.rank_channels + program.first_rank_channel;
    for (uint32_t c = 0; c < allocation.nranks * program.nchannels; ++c)
      for (uint32_t s = 0; s < places[c].nsteps; ++s) {
        const Step &step = tables.steps[places[c].first_step + s];
        if (tables.shares[program.first_share + step.share].part == 0) continue;
        for (uint32_t i = 0; i < step.nsend; ++i) staged[tables.refs[step.first_ref + step.nrecv + i].fifo] = true;
      }
  }
  return staged;
}

}  // namespace collc::cuda
