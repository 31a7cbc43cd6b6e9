// What the user may override of the tables for a communicator: COLLC_PROTO, COLLC_CHUNK, COLLC_CHANNELS.
#include <strings.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cuda/world.h"
#include "environment.h"

namespace collc::cuda {
namespace {

const char *const kProtocolNames[] = {"Simple", "LL", "LL128"};
static_assert(std::size(kProtocolNames) == kProtocols, "one name per protocol");

constexpr uint32_t kMostChannels = 1024;

std::string show_protocol(const Overrides &overrides) {
  return overrides.protocol < 0 ? "no COLLC_PROTO" : format("COLLC_PROTO=%s", kProtocolNames[overrides.protocol]);
}

std::string show_number(const char *name, uint32_t value) {
  return value == 0 ? format("no %s", name) : format("%s=%u", name, value);
}

}  // namespace

Status read_overrides(Overrides *overrides) {
  *overrides = {};
  const char *text = std::getenv("COLLC_PROTO");
  if (text != nullptr && *text != '\0') {
    for (uint32_t p = 0; p < kProtocols; ++p)
      if (strcasecmp(text, kProtocolNames[p]) == 0) overrides->protocol = static_cast<int32_t>(p);
    if (overrides->protocol < 0) return fail(ncclInvalidUsage, "COLLC_PROTO=%.40s is not Simple, LL or LL128", text);
  }
  COLLC_RETURN_IF_FAILED(read_chunk(&overrides->chunk_bytes));
  return read_whole("COLLC_CHANNELS", kMostChannels, &overrides->channels);
}

Status compare_settings(const std::vector<RankSettings> &settings) {
  const Overrides &first = settings[0].overrides;
  for (size_t r = 0; r < settings.size(); ++r)
    if (settings[r].problem[0] != '\0') return fail(ncclInvalidUsage, "rank %zu: %.160s", r, settings[r].problem);
  for (size_t r = 0; r < settings.size(); ++r) {
    const Overrides &other = settings[r].overrides;
    std::string a, b;
    if (other.protocol != first.protocol) {
      a = show_protocol(first), b = show_protocol(other);
    } else if (other.chunk_bytes != first.chunk_bytes) {
      a = show_number("COLLC_CHUNK", first.chunk_bytes), b = show_number("COLLC_CHUNK", other.chunk_bytes);
    } else if (other.channels != first.channels) {
      a = show_number("COLLC_CHANNELS", first.channels), b = show_number("COLLC_CHANNELS", other.channels);
    } else {
      continue;
    }
    return fail(ncclInvalidUsage, "ranks 0 and %zu disagree: %s on the one, %s on the other", r, a.c_str(), b.c_str());
  }
  return {};
}

// NVLink has atomics between GPUs; PCIe has none or carries them apart, and tears lines.
Status find_cut_off(const RankContext &context, const Device *device, const std::vector<RankSettings> &settings,
                    uint32_t *peer) {
  *peer = kNobody;
  const Driver &cu = driver();
  int devices = 0;
  COLLC_RETURN_IF_FAILED(check(cu.device_count(&devices), "counting GPUs"));
  const auto reaches = [&](const Uuid &theirs) {
    if (std::memcmp(&theirs, &device->uuid, sizeof theirs) == 0) return true;
    for (int d = 0; d < devices; ++d) {
      DeviceNumber number = 0;
      Uuid uuid = {};
      int atomics = 0;
      if (cu.device_get(&number, d) != 0 || cu.device_uuid(&uuid, number) != 0) continue;
      if (std::memcmp(&theirs, &uuid, sizeof uuid) != 0) continue;
      return cu.peer_attribute(&atomics, kPeerAtomics, device->number, number) == 0 && atomics != 0;
    }
    return false;  // a GPU that this process does not see
  };
  const Allocation &allocation = *context.placement.allocation;
  const uint32_t me = context.placement.plan_rank[context.rank];
  for (uint32_t f = 0; f < allocation.nfifos && *peer == kNobody; ++f) {
    const Fifo &fifo = context.tables->fifos[allocation.first_fifo + f];
    const uint32_t *readers = context.tables->fifo_readers + fifo.first_reader;
    for (uint32_t r = 0; r < fifo.nreaders; ++r) {
      if (fifo.src != me && readers[r] != me) continue;
      const uint32_t other = context.placement.nccl_rank[fifo.src == me ? readers[r] : fifo.src];
      if (!reaches(settings[other].uuid)) *peer = other;
    }
  }
  return {};
}

Status decide_ll128(const std::vector<RankSettings> &settings, bool *runs) {
  *runs = true;
  const bool forced = settings[0].overrides.protocol == static_cast<int32_t>(kLL128);
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
