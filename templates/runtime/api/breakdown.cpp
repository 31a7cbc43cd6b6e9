// Extensions of NCCL's API for `collc bench`: the time that calls spent, the protocols that they used, and checked pairs of
// ranks.
#include <algorithm>

#include "api/api.h"
#include "plan/embedded_tables.h"

extern "C" {

// Writes the ns of waiting, copying and reducing since creation, for up to `most` channels of this rank. Returns the number
// of channels; 0 unless COLLC_BREAKDOWN was set at creation (on CUDA also unless the kernels were built to count).
COLLC_API uint32_t collc_breakdown(ncclComm_t comm, uint64_t *times, uint32_t most) {
  uint32_t channels = 0;
  const auto read = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->backend_rank() == nullptr) return {};
    const std::vector<collc::ChannelTimes> all = found->backend_rank()->times();
    channels = static_cast<uint32_t>(all.size());
    for (uint32_t c = 0; c < std::min(channels, most); ++c) {
      times[3 * c] = all[c].waiting;
      times[3 * c + 1] = all[c].copying;
      times[3 * c + 2] = all[c].reducing;
    }
    return {};
  };
  return collc::with_communicator("collc_breakdown", comm, read) == ncclSuccess ? channels : 0;
}

// Returns the protocol of such a call, as the tables number it; -1 if no program would run. `bytes`: count times the element
// size.
COLLC_API int collc_protocol_of(ncclComm_t comm, uint32_t collective, int root, uint64_t bytes) {
  int protocol = -1;
  const auto look = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->real() != nullptr || found->backend_rank() == nullptr ||
        root >= static_cast<int>(found->nranks()))
      return {};
    const collc::Program *program = found->choose(static_cast<collc::Collective>(collective), root, bytes);
    if (program != nullptr) protocol = static_cast<int>(found->backend_rank()->protocol_of(*program, bytes));
    return {};
  };
  return collc::with_communicator("collc_protocol_of", comm, look) == ncclSuccess ? protocol : -1;
}

// Writes up to `most` of the pairs of ranks, of all ranks, that COLLC_CHECK has checked at creation. Returns the number of
// pairs; 0 without COLLC_CHECK.
COLLC_API uint32_t collc_checked(ncclComm_t comm, collc::CheckedPair *pairs, uint32_t most) {
  uint32_t count = 0;
  const auto read = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok()) return {};
    const std::vector<collc::CheckedPair> &all = found->checked();
    count = static_cast<uint32_t>(all.size());
    std::copy(all.begin(), all.begin() + std::min(count, most), pairs);
    return {};
  };
  return collc::with_communicator("collc_checked", comm, read) == ncclSuccess ? count : 0;
}

// Returns the state of the machine whose plans a communicator runs; -1 if the real NCCL serves it.
COLLC_API int collc_state_of(ncclComm_t comm) {
  int state = -1;
  const auto look = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (collc::check_made(*found).ok() && found->real() == nullptr) state = static_cast<int>(found->placement().state);
    return {};
  };
  return collc::with_communicator("collc_state_of", comm, look) == ncclSuccess ? state : -1;
}

// Returns the number of the allocation that a communicator runs; -1 if the real NCCL serves it or it has none.
COLLC_API int collc_allocation_of(ncclComm_t comm) {
  int number = -1;
  const auto look = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->real() != nullptr) return {};
    const collc::Allocation *allocation = found->placement().allocation;
    if (allocation != nullptr) number = static_cast<int>(allocation - collc::tables().allocations);
    return {};
  };
  return collc::with_communicator("collc_allocation_of", comm, look) == ncclSuccess ? number : -1;
}

}  // extern "C"
