#include "cuda/ways.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/log.h"
#include "base/random.h"
#include "cuda/fill.h"

namespace collc::cuda {
namespace {

bool is_here(const WordPlace &place) { return std::memcmp(place.process, process_token(), sizeof place.process) == 0; }

bool can_access(const Device &device, DeviceNumber theirs) {
  int reachable = 0;
  return driver().can_access_peer(&reachable, device.number, theirs) == 0 && reachable != 0;
}

Obstacle open_peer(const Device &device, const Device &theirs) {
  if (!can_access(device, theirs.number)) return Obstacle::kNoPeerAccess;
  const Result enabled = driver().enable_peer(theirs.context, 0);
  return enabled == 0 || enabled == kPeerAccessAlreadyEnabled ? Obstacle::kNone : Obstacle::kNoPeerAccess;
}

// Opened once for all ranks that are on one GPU of a process.
class Opener {
 public:
  Opener(const Device *device, WaysMemory *memory) : device_(device), memory_(memory) {}

  Obstacle look(const WordPlace &place) {
    Address at = place.at;
    if (is_here(place)) {
      const Device *theirs = known_device(place.device);
      if (theirs == nullptr) return Obstacle::kNoPeerAccess;
      if (theirs == device_) return Obstacle::kNone;
      if (const Obstacle obstacle = open_peer(*device_, *theirs); obstacle != Obstacle::kNone) return obstacle;
    } else {
      DeviceNumber number = 0;  // a GPU that this process does not see may still be one that it reaches
      const bool other = std::memcmp(&place.uuid, &device_->uuid, sizeof place.uuid) != 0;
      if (other && find_visible(place.uuid, &number) && !can_access(*device_, number)) return Obstacle::kNoPeerAccess;
      if (place.shareable == 0) return Obstacle::kNoHandle;
      const std::string key(reinterpret_cast<const char *>(&place.handle), sizeof place.handle);
      const auto [found, is_new] = known_.emplace(key, Address{0});
      if (is_new && driver().ipc_open(&found->second, place.handle, kIpcLazyPeerAccess) != 0) found->second = 0;
      if (found->second == 0) return Obstacle::kNotOpened;
      if (is_new) memory_->opened.push_back(found->second);
      at = found->second;
    }
    unsigned char word[sizeof place.word] = {};
    if (!read(at, word).ok()) return Obstacle::kNotRead;
    return std::memcmp(word, place.word, sizeof word) == 0 ? Obstacle::kNone : Obstacle::kWrongWord;
  }

 private:
  // Through memory of its own: straight to the host, the driver might have the other GPU copy.
  Status read(Address from, unsigned char (&word)[kWordBytes]) {
    const Address own = memory_->word + kWordBytes;
    return alone("reading another GPU's memory", [&](const Driver &cu, Stream stream) {
      const Result copied = cu.copy_async(own, from, sizeof word, stream);
      return copied != 0 ? copied : cu.download_async(word, own, sizeof word, stream);
    });
  }

  const Device *device_;
  WaysMemory *memory_;
  std::map<std::string, Address> known_;
};

// Up to two lines of a rank: "rank 0: GPU memory joins it with rank(s) 1, 2" and "rank 0: pinned host memory joins it with
// rank 3 (no peer access between the GPUs)".
void log_ways(uint32_t rank, const Ways &ways) {
  if (!logs(LogLevel::kInfo)) return;
  std::string direct, pinned;
  for (uint32_t peer = 0; peer < ways.nranks; ++peer) {
    if (peer == rank) continue;
    if (ways.direct(rank, peer)) {
      direct += format("%s %u", direct.empty() ? "" : ",", peer);
      continue;
    }
    const Obstacle ours = ways.obstacle(rank, peer), why = ours == Obstacle::kNone ? ways.obstacle(peer, rank) : ours;
    pinned += format("%s rank %u (%s)", pinned.empty() ? "" : ",", peer, describe(why));
  }
  if (!direct.empty()) log(LogLevel::kInfo, "rank %u: GPU memory joins it with rank(s)%s", rank, direct.c_str());
  if (!pinned.empty()) log(LogLevel::kInfo, "rank %u: pinned host memory joins it with%s", rank, pinned.c_str());
}

}  // namespace

const unsigned char *process_token() {
  static unsigned char token[16];
  static const Status made = random_bytes(token, sizeof token);
  return token;
}

const char *describe(Obstacle obstacle) {
  switch (obstacle) {
    case Obstacle::kNone:
      return "GPU memory";
    case Obstacle::kNoPeerAccess:
      return "no peer access between the GPUs";
    case Obstacle::kNoHandle:
      return "no IPC handle of its memory can be made";
    case Obstacle::kNotOpened:
      return "the IPC handle of its memory cannot be opened";
    case Obstacle::kNotRead:
      return "reading its memory failed";
    case Obstacle::kWrongWord:
      return "its memory gives wrong data: an IOMMU or ACS between the GPUs?";
  }
  return "";
}

PinnedPairs Ways::pinned_pairs(const std::vector<uint32_t> &plan_rank) const {
  PinnedPairs pairs;
  for (uint32_t a = 0; a < nranks; ++a)
    for (uint32_t b = a + 1; b < nranks; ++b)
      if (!direct(a, b)) pairs.insert(std::minmax(plan_rank[a], plan_rank[b]));
  return pairs;
}

Status find_ways(const RankContext &context, const Device *device, Ways *ways, WaysMemory *memory) {
  WordPlace mine = {};
  std::memcpy(mine.process, process_token(), sizeof mine.process);
  mine.uuid = device->uuid;
  mine.device = device->number;
  unsigned char both[2 * kWordBytes] = {};  // the word, and room for the one that this GPU reads
  COLLC_RETURN_IF_FAILED(random_bytes(mine.word, sizeof mine.word));
  std::memcpy(both, mine.word, sizeof mine.word);
  COLLC_RETURN_IF_FAILED(put_on_device(both, sizeof both, &memory->word));
  mine.at = memory->word;
  mine.shareable = driver().ipc_get(&mine.handle, mine.at) == 0;
  std::vector<WordPlace> places;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, mine, &places));
  ways->nranks = context.nranks;
  Opener opener(device, memory);
  std::vector<Obstacle> row(context.nranks, Obstacle::kNone);
  for (uint32_t peer = 0; peer < context.nranks; ++peer)
    if (peer != context.rank) row[peer] = opener.look(places[peer]);
  COLLC_RETURN_IF_FAILED(exchange_rows(context.exchange, row, &ways->obstacles));
  log_ways(context.rank, *ways);
  return {};
}

}  // namespace collc::cuda
