// Which way the data of a call goes, by the thresholds that the ranks of a machine share.
#include <unistd.h>

#include "host/rank.h"

namespace collc {
namespace {

// A broadcast, which reads and writes every byte once, gains from a last cache that holds all outputs so many times: cores
// share it, those of other virtual machines too.
constexpr uint64_t kCached = 6;

// Bytes of the last cache; 0: not known.
uint64_t last_cache() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
#else
  return 0;
#endif
}

}  // namespace

bool HostRank::is_streamed() const {
  const Thresholds &from = shared_.neighbours.thresholds();
  const uint64_t bytes = output_bytes();
  if (shared_.running.call->collective != Collective::kBroadcast) return bytes >= from.streamed_results;
  if (from.streamed_broadcasts != 0) return context_.nranks * bytes >= from.streamed_broadcasts;
  return bytes >= from.streamed_results && context_.nranks * bytes >= last_cache() / kCached;
}

// Until it is known what that costs (transport/slot_ways.h).
bool HostRank::streams_slots() const {
  const Thresholds &from = shared_.neighbours.thresholds();
  const bool broadcast = shared_.running.call->collective == Collective::kBroadcast;
  return output_bytes() >= (broadcast ? from.streamed_broadcast_slots : from.streamed_slots);
}

bool HostRank::is_pulled() const {
  if (shared_.running.call->collective != Collective::kBroadcast || !cores_are_free()) return false;
  const Thresholds &from = shared_.neighbours.thresholds();
  return output_bytes() >= from.pulled_broadcasts && output_bytes() < from.pulled_broadcasts_end;
}

}  // namespace collc
