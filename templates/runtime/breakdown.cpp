// Where the time of a communicator's calls went, for `collc bench --breakdown`.
#include <algorithm>

#include "api.h"

extern "C" {

// Writes waiting, copying and reducing of up to `most` channels of this rank, in nanoseconds since creation; returns how
// many channels there are, 0 unless COLLC_BREAKDOWN was set at creation (CUDA: and the kernels were built to count).
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

}  // extern "C"
