// GPUDirect: with COLLC_GPUDIRECT=1 slots between servers lie in memory of the GPU that writes or reads them (card_slots.h), and
// cards of the network read and write there. Flags stay in pinned host memory. Every rank allocates its own, the process that has
// the courier of its machine maps all of them, and its engine registers them; where any of that fails on any rank, all ranks have
// their slots in host memory, with a line that says why.
#pragma once
#include "cuda/world.h"

namespace collc::cuda {

// COLLC_GPUDIRECT, and why this GPU's memory is not for cards; for the settings that ranks compare.
Status read_gpudirect(const Device &device, RankSettings *mine);
// Whether all ranks may try.
bool tries_gpudirect(const RankContext &context, const std::vector<RankSettings> &settings);

// Joins the machines of a communicator; collective among its ranks, while it is made. `tries`: as above. `own`: takes the memory of this
// rank's slots, which the world has; empty where they are in host memory.
Status join_by_cards(const RankContext &context, const Device &device, World &world, bool tries, VirtualMemory *own);

}  // namespace collc::cuda
