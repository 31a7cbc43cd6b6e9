// Where the lanes of transfers lie: in the arenas of the ranks, or in the pinned memory of a pair.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "collc/cuda/layout.h"

namespace collc::cuda {

// Addresses of one lane.
struct LanePlaces {
  uint64_t slots, tail, head;
};

// The layout of p2p channels (lanes), the same in all arenas: flags of both directions, then slots. Every rank has room for the
// chunks that each other rank sends it.
struct LanePlan {
  uint32_t lanes = 0;  // between two ranks in one direction
  uint32_t slots = 0;  // of a lane
  uint32_t bytes = 0;  // of data in a slot
  uint32_t nranks = 0;

  size_t slot_bytes() const { return kSlotHead + bytes; }
  size_t flag(bool sends, uint32_t peer, uint32_t lane) const {
    return ((size_t{sends} * nranks + peer) * lanes + lane) * kFlagBytes;
  }
  size_t slots_at(uint32_t peer, uint32_t lane) const {
    return flag(true, nranks, 0) + (size_t{peer} * lanes + lane) * slots * slot_bytes();
  }
  size_t bytes_in_all() const { return slots_at(nranks, 0); }
  // The lanes of both directions between two ranks.
  size_t bytes_in_region() const { return size_t{2} * lanes * (2 * kFlagBytes + slots * slot_bytes()); }

  LanePlaces in_arenas(uint64_t reader_at, uint64_t writer_at, uint32_t writer, uint32_t reader, uint32_t lane) const {
    return {reader_at + slots_at(writer, lane), reader_at + flag(false, writer, lane), writer_at + flag(true, reader, lane)};
  }
  // `upwards`: to the higher rank of the plan.
  LanePlaces in_region(uint64_t at, bool upwards, uint32_t lane) const {
    const size_t number = size_t{upwards} * lanes + lane;
    const uint64_t flags = at + 2 * number * kFlagBytes, all = at + size_t{4} * lanes * kFlagBytes;
    return {all + number * slots * slot_bytes(), flags, flags + kFlagBytes};
  }
};

constexpr size_t kMostLaneBytes = size_t{16} << 20;  // that one rank may receive

// Plans lanes for `nranks` ranks. A few bytes in flight between two ranks are enough (450 GB/s for 5 us are 2 MB), and all
// receive slots of a rank fit in 16 MiB, up to 256 ranks. No slot is longer than `most` bytes, the slot of the plan.
inline LanePlan plan_lanes(uint32_t nranks, uint32_t most) {
  LanePlan plan{8, 2, std::min(most, 128u << 10) / 16 * 16, nranks};
  while (plan.bytes_in_all() > kMostLaneBytes && (plan.lanes > 1 || plan.bytes > 4096)) {
    if (plan.bytes > (32 << 10) || plan.lanes == 1)
      plan.bytes /= 2;
    else
      plan.lanes /= 2;
  }
  plan.bytes = std::max(plan.bytes / 16 * 16, 16u);
  return plan;
}

// The same if some ranks are on other servers: slots are as large as in the queues between servers.
inline LanePlan plan_lanes_beside_queues(uint32_t nranks, uint32_t slots, uint32_t slot_bytes) {
  LanePlan plan{8, slots, slot_bytes - kSlotHead, nranks};
  while (plan.bytes_in_all() > kMostLaneBytes && plan.lanes > 1) plan.lanes /= 2;
  return plan;
}

}  // namespace collc::cuda
