// Settings that the ranks of a communicator must agree on before any of them allocates.
#include <cstring>

#include "base/environment.h"
#include "cuda/world.h"

namespace collc::cuda {

Status read_threads(uint32_t *most) {
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_THREADS", kMaxThreads, most));
  if (*most == 0) *most = kMaxThreads;
  if (*most >= kMinThreads && (*most & (*most - 1)) == 0) return {};
  return fail(ncclInvalidUsage, "COLLC_THREADS=%u is not 64, 128, 256 or 512", *most);
}

Status compare_settings(const std::vector<RankSettings> &settings) {
  for (size_t r = 0; r < settings.size(); ++r)
    if (settings[r].problem[0] != '\0') return fail(ncclInvalidUsage, "rank %zu: %.160s", r, settings[r].problem);
  for (uint32_t r = 0; r < settings.size(); ++r) {
    COLLC_RETURN_IF_FAILED(compare_overrides(settings[0].overrides, settings[r].overrides, r));
    if (settings[r].copies_from != settings[0].copies_from)
      return fail(ncclInvalidUsage, "ranks 0 and %u disagree: COLLC_COPY_ENGINES=%u on the one, %u on the other", r,
                  settings[0].copies_from, settings[r].copies_from);
  }
  return {};
}

// NVLink has atomics between GPUs; PCIe has none or carries them apart, and tears lines.
Status find_cut_off(const RankContext &context, const Device *device, const std::vector<RankSettings> &settings,
                    const Ways &ways, uint32_t *peer) {
  *peer = kNobody;
  const Driver &cu = driver();
  const auto reaches = [&](uint32_t rank) {
    if (!ways.direct(context.rank, rank)) return false;  // PCIe, and host memory
    const Uuid &theirs = settings[rank].uuid;
    if (std::memcmp(&theirs, &device->uuid, sizeof theirs) == 0) return true;
    DeviceNumber number = 0;
    int atomics = 0;
    if (find_visible(theirs, &number))
      return cu.peer_attribute(&atomics, kPeerAtomics, device->number, number) == 0 && atomics != 0;
    return context.links.between(context.rank, rank) != 0;  // a GPU that this process does not see
  };
  const Allocation &allocation = *context.placement.allocation;
  const uint32_t me = context.placement.plan_rank[context.rank];
  const ClassFifos classes = class_fifos(*context.tables, allocation);
  for (uint32_t f = 0; f < allocation.nfifos && *peer == kNobody; ++f) {
    if (classes.staged[f] || classes.wired[f]) continue;  // programs with such FIFOs run over Simple or LL
    const Fifo &fifo = context.tables->fifos[allocation.first_fifo + f];
    const uint32_t *readers = context.tables->fifo_readers + fifo.first_reader;
    for (uint32_t r = 0; r < fifo.nreaders; ++r) {
      if (fifo.src != me && readers[r] != me) continue;
      const uint32_t other = context.placement.nccl_rank[fifo.src == me ? readers[r] : fifo.src];
      if (!reaches(other)) *peer = other;
    }
  }
  return {};
}

Status decide_ll128(const std::vector<RankSettings> &settings, bool *runs) {
  *runs = true;
  const Overrides &all = settings[0].overrides;
  const bool forced = all.protocol == static_cast<int32_t>(kLL128) && all.is_preference == 0;
  for (size_t r = 0; r < settings.size(); ++r) {
    const RankSettings &one = settings[r];
    *runs &= one.has_ll128 != 0 && one.cut_off == kNobody;
    if (forced && one.has_ll128 == 0)
      return fail(ncclInvalidUsage, "COLLC_PROTO=LL128: the GPU of rank %zu is older than sm_70, which LL128 needs", r);
    if (forced && one.cut_off != kNobody)
      return fail(ncclInvalidUsage, "COLLC_PROTO=LL128: no NVLink joins ranks %zu and %u", r, one.cut_off);
  }
  return {};
}

}  // namespace collc::cuda
