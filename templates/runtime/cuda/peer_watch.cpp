#include "cuda/peer_watch.h"

#include <algorithm>

namespace collc::cuda {
namespace {

// Looks of 100 ms: chunks that a rank has sent before it left arrive in that time.
constexpr uint32_t kLooksAlone = 10;

}  // namespace

void PeerWatch::note_transfer(uint32_t peer) {
  const std::lock_guard<std::mutex> lock(transfers_mutex_);
  transfers_.insert(peer);
}

Status PeerWatch::look(bool runs) {
  COLLC_RETURN_IF_FAILED(look_at_peers());
  COLLC_RETURN_IF_FAILED(look_at_transfers(runs));
  return look_at_proxy(runs);
}

Status PeerWatch::look_at_peers() const {
  const Control &control = *context_.segment;
  const uint64_t number = control.newest_call(context_.rank);
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (peer == context_.rank) continue;
    const bool left = control.has_left(peer), is_alive = left || control.alive(peer);
    COLLC_RETURN_IF_FAILED(control.compare(context_.rank, peer));
    if ((left || !is_alive) && control.aborted()) return {};  // the peer broke the communicator before it went
    if (!is_alive) return fail(ncclRemoteError, "%s has died", context_.placement.name_of(peer).c_str());
    if (left && control.newest_call(peer) < number)
      return fail(ncclRemoteError, "%s has destroyed its communicator before call %llu",
                  context_.placement.name_of(peer).c_str(), static_cast<unsigned long long>(number));
  }
  return {};
}

// Chunks that a rank had sent when it left are here. A call that still waits for the rank after that waits forever.
Status PeerWatch::look_at_transfers(bool runs) {
  const std::lock_guard<std::mutex> lock(transfers_mutex_);
  const auto gone =
      std::find_if(transfers_.begin(), transfers_.end(), [&](uint32_t peer) { return context_.segment->has_left(peer); });
  if (gone == transfers_.end() || !runs) {
    looks_without_peer_ = 0;
    if (gone != transfers_.end()) transfers_.clear();
    return {};
  }
  if (++looks_without_peer_ < kLooksAlone || context_.segment->aborted()) return {};
  return fail(ncclRemoteError, "%s has destroyed its communicator before a transfer with rank %u",
              context_.placement.name_of(*gone).c_str(), context_.rank);
}

// Kernels do not report the rank that they wait for. So a call that runs long after the proxy has ended is assumed to need it.
Status PeerWatch::look_at_proxy(bool runs) {
  uint32_t owner = 0;
  if (context_.placement.machine.empty() || !context_.segment->proxy_has_ended(&owner) || !runs) {
    looks_without_proxy_ = 0;
    return {};
  }
  if (++looks_without_proxy_ < kLooksAlone || context_.segment->aborted()) return {};
  return fail(ncclRemoteError, "the process of %s, which joined this machine with others, has %s",
              context_.placement.name_of(owner).c_str(), context_.segment->has_left(owner) ? "ended" : "died");
}

}  // namespace collc::cuda
