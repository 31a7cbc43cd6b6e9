// The ends of the lanes of transfers, from the layouts of a plan.
#pragma once
#include <vector>

#include "cuda/device_plan.h"

namespace collc::cuda {

// Returns the connectors of `rank`'s p2p channels (lanes), in the order of RankState::lane_ends: receives, then sends. Only the
// first lane leads to a rank on another server.
template <class Arena, class Region, class Halves = NoHalves>
std::vector<FifoEnd> make_lane_ends(const DevicePlan &plan, uint32_t rank, Arena arena, Region region,
                                    const Halves &halves = {}) {
  const LanePlan &lanes = plan.lanes;
  std::vector<FifoEnd> made(size_t{2} * plan.nranks * lanes.lanes);
  for (uint32_t e = 0; e < 2 * plan.nranks; ++e)
    for (uint32_t lane = 0; lane < lanes.lanes; ++lane) {
      const bool sends = e >= plan.nranks;
      const uint32_t peer = e % plan.nranks, writer = sends ? rank : peer, reader = sends ? peer : rank;
      FifoEnd &end = made[e * lanes.lanes + lane];
      end = {};
      if (peer == rank) continue;
      if (plan.elsewhere.apart(rank, peer)) {
        if (lane == 0) take_half(halves.queue(writer, reader), sends, &end);
        continue;
      }
      LanePlaces places;
      if (plan.pinned.joins(rank, peer))
        places = lanes.in_region(region(peer) + plan.pinned.lanes_at(rank, peer), writer < reader, lane);
      else
        places =
            lanes.in_arenas(arena(reader) + plan.lanes_at[reader], arena(writer) + plan.lanes_at[writer], writer, reader, lane);
      auto *tail = reinterpret_cast<uint64_t *>(places.tail), *head = reinterpret_cast<uint64_t *>(places.head);
      end.slots = reinterpret_cast<char *>(places.slots);
      end.wait_on = sends ? head : tail;
      end.publish_to = sends ? tail : head;
    }
  return made;
}

}  // namespace collc::cuda
