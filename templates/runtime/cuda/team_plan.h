// The part of a plan for programs inside a switch (in_switch.h of the kernels).
#pragma once
#include <cstddef>
#include <cstdint>

#include "collc/cuda/layout.h"
#include "collc/tables.h"

namespace collc::cuda {

// Of one end of a FIFO. All FIFOs of a step through the switch have one `group`, the number of the first of them; `multicast`
// is the end that writes or reads all of them by the address that stands for all.
struct TeamPlace {
  bool is_in = false;
  bool multicast = false;
  uint32_t group = 0;
};

// The addresses of a rank: its memory in the multicast group, and the multicast address.
struct TeamAddresses {
  uint64_t mine = 0;
  uint64_t multicast = 0;

  // Returns the address that the slots of a connector are counted from; `arena` if they are not in the memory of the group.
  uint64_t base(const TeamPlace &place, uint64_t arena) const {
    return !place.is_in ? arena : place.multicast ? multicast : mine;
  }
};

// Bytes that slots take of each rank's memory: whole lines.
constexpr size_t team_slots(size_t bytes) { return (bytes + kFlagBytes - 1) / kFlagBytes * kFlagBytes; }

// Returns true if a switch adds up or copies for some step of a program.
inline bool uses_switch(const Tables &tables, const Program &program, uint32_t nranks) {
  const RankChannel *places = tables.rank_channels + program.first_rank_channel;
  for (uint32_t c = 0; c < nranks * program.nchannels; ++c)
    for (uint32_t s = 0; s < places[c].nsteps; ++s)
      if ((tables.steps[places[c].first_step + s].flags & (kSwitchSum | kSwitchCopy)) != 0) return true;
  return false;
}

}  // namespace collc::cuda
