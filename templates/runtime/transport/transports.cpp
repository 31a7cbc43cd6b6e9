#include "transport/transports.h"

namespace collc {

Status KernelCopyTransport::read(const ChunkPlace &at, const Fifos &fifos, const Neighbors &neighbors, uint32_t peer,
                                 uint64_t limit, void *to) {
  FifoEnd &end = at.end;
  if (at.number < end.fetched) return {};
  const uint64_t from = at.line().chunk.address, written = end.tail->load(std::memory_order_acquire);
  uint64_t bytes = at.line().chunk.bytes, next = at.number + 1;
  for (; next < limit && next < written; ++next) {
    const ChunkPlace following{end, next, fifos.slot_of(next)};
    const ChunkAddress &chunk = following.line().chunk;
    if ((tag(following) & kByAddress) == 0 || chunk.address != from + bytes) break;
    bytes += chunk.bytes;
  }
  end.fetched = next;
  return neighbors.read(peer, from, to, bytes);
}

Status KernelCopyTransport::fetch(const ChunkPlace &at, const Neighbors &neighbors, uint32_t peer) {
  if (at.number < at.end.fetched) return {};
  if (at.end.scratch == nullptr)
    return fail(ncclInternalError, "rank %u sends an address to be reduced, and there is no room for it here", peer);
  at.end.fetched = at.number + 1;
  const ChunkAddress &chunk = at.line().chunk;
  return neighbors.read(peer, chunk.address, at.end.scratch, chunk.bytes);
}

}  // namespace collc
