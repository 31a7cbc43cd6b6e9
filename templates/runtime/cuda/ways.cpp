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

// Through memory of its own: straight to the host, the driver might have the other GPU copy.
Obstacle read_word(Address from, Address own, const unsigned char (&expected)[kWordBytes]) {
  unsigned char word[kWordBytes] = {};
  const Status read = alone("reading another GPU's memory", [&](const Driver &cu, Stream stream) {
    const Result copied = cu.copy_async(own, from, sizeof word, stream);
    return copied != 0 ? copied : cu.download_async(word, own, sizeof word, stream);
  });
  if (!read.ok()) return Obstacle::kNotRead;
  return std::memcmp(word, expected, sizeof word) == 0 ? Obstacle::kNone : Obstacle::kWrongWord;
}

// Memory of one GPU is that of all ranks on it.
bool is_same_gpu(const Device &device, const WordPlace &place) {
  return std::memcmp(&place.uuid, &device.uuid, sizeof place.uuid) == 0;
}

// A GPU that this process does not see may still be one that it reaches.
bool sees_no_way(const Device &device, const WordPlace &place) {
  DeviceNumber number = 0;
  return !is_same_gpu(device, place) && find_visible(place.uuid, &number) && !can_access(device, number);
}

// Opened once for all ranks that are on one GPU of a process.
class Opener {
 public:
  Opener(const Device *device, bool only_host_memory, WaysMemory *memory)
      : device_(device), only_host_memory_(only_host_memory), memory_(memory) {}

  bool is_forbidden(const WordPlace &place) const {
    // What a process has on its own GPU is no peer's.
    return (only_host_memory_ || place.only_host_memory != 0) && !(is_here(place) && is_same_gpu(*device_, place));
  }

  Obstacle look(const WordPlace &place) {
    Address at = place.at;
    if (is_forbidden(place)) return Obstacle::kForbidden;
    if (is_here(place)) {
      const Device *theirs = known_device(place.device);
      if (theirs == nullptr) return Obstacle::kNoPeerAccess;
      if (theirs == device_) return Obstacle::kNone;
      if (const Obstacle obstacle = open_peer(*device_, *theirs); obstacle != Obstacle::kNone) return obstacle;
    } else {
      if (sees_no_way(*device_, place)) return Obstacle::kNoPeerAccess;
      if (place.shareable == 0) return Obstacle::kNoHandle;
      const std::string key(reinterpret_cast<const char *>(&place.handle), sizeof place.handle);
      const auto [found, is_new] = known_.emplace(key, Address{0});
      if (is_new && driver().ipc_open(&found->second, place.handle, kIpcLazyPeerAccess) != 0) found->second = 0;
      if (found->second == 0) return Obstacle::kNotOpened;
      if (is_new) memory_->opened.push_back(found->second);
      at = found->second;
    }
    return read_word(at, memory_->word + kWordBytes, place.word);
  }

 private:
  const Device *device_;
  bool only_host_memory_;
  WaysMemory *memory_;
  std::map<std::string, Address> known_;
};

// A word in virtual memory; bytes 0: it could not be made.
struct VirtualWord {
  VirtualMemory memory;
  unsigned char word[kWordBytes];
};

Status put_virtual_word(const Device &device, WaysMemory *memory, VirtualWord *mine, Descriptor *file) {
  VirtualMemory made;
  const Status status = make_virtual(device, sizeof mine->word, &made, file);
  if (made.bytes != 0) memory->mapped.push_back(made);
  if (!status.ok()) {
    file->reset();
    log(LogLevel::kInfo, "no file descriptor of GPU memory: %s", status.text().c_str());
    return {};
  }
  COLLC_RETURN_IF_FAILED(random_bytes(mine->word, sizeof mine->word));
  mine->memory = made;
  return alone("filling GPU memory", [&](const Driver &cu, Stream stream) {
    return cu.upload_async(made.at, mine->word, sizeof mine->word, stream);
  });
}

// Where GPUs of one process have no peer access, they get none to virtual memory either.
Obstacle look_by_descriptor(const Device &device, const WordPlace &place, const VirtualWord &theirs, int file,
                            WaysMemory *memory) {
  if (theirs.memory.bytes == 0) return Obstacle::kNoDescriptor;
  Address at = theirs.memory.at;
  if (is_here(place)) {
    if (known_device(place.device) == &device) return Obstacle::kNone;
    if (!grant(device, theirs.memory)) return Obstacle::kNoPeerAccess;
  } else {
    if (sees_no_way(device, place)) return Obstacle::kNoPeerAccess;
    VirtualMemory mapped;
    if (!map_virtual(device, file, theirs.memory.bytes, &mapped)) return Obstacle::kNotMapped;
    memory->mapped.push_back(mapped);
    at = mapped.at;
  }
  return read_word(at, memory->word + kWordBytes, theirs.word);
}

// Whether a pair that IPC handles do not join might have file descriptors. The same on all ranks.
bool are_worth_a_try(const Obstacles &by_handle, const std::vector<WordPlace> &places) {
  for (uint32_t a = 0; a < by_handle.nranks; ++a)
    for (uint32_t b = 0; b < by_handle.nranks; ++b) {
      const Obstacle obstacle = a == b ? Obstacle::kNone : by_handle.between(a, b);
      if ((obstacle == Obstacle::kNoHandle || obstacle == Obstacle::kNotOpened) && places[a].describable != 0 &&
          places[b].describable != 0)
        return true;
    }
  return false;
}

Status try_descriptors(const RankContext &context, const Device &device, const Opener &opener,
                       const std::vector<WordPlace> &places, Ways *ways, WaysMemory *memory) {
  VirtualWord mine = {};
  Descriptor file;
  if (has_descriptors(device)) COLLC_RETURN_IF_FAILED(put_virtual_word(device, memory, &mine, &file));
  std::vector<VirtualWord> words;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, mine, &words));
  std::vector<Descriptor> files;
  COLLC_RETURN_IF_FAILED(exchange_descriptors(context, file, &files));
  std::vector<Obstacle> row(context.nranks, Obstacle::kNone);
  for (uint32_t peer = 0; peer < context.nranks; ++peer)
    if (!context.placement.is_here(peer))
      row[peer] = Obstacle::kElsewhere;
    else if (opener.is_forbidden(places[peer]))
      row[peer] = Obstacle::kForbidden;
    else if (peer != context.rank)
      row[peer] = look_by_descriptor(device, places[peer], words[peer], files[peer].get(), memory);
  ways->by_descriptor.nranks = context.nranks;
  COLLC_RETURN_IF_FAILED(exchange_rows(context.exchange, row, &ways->by_descriptor.all));
  ways->chose_descriptors = ways->by_descriptor.direct_pairs() > ways->by_handle.direct_pairs();
  return {};
}

// Why memory of one rank does not reach the other.
std::string why_not(const Obstacles &obstacles, uint32_t rank, uint32_t peer) {
  const Obstacle ours = obstacles.between(rank, peer);
  return describe(ours == Obstacle::kNone ? obstacles.between(peer, rank) : ours);
}

std::string why_pinned(const Ways &ways, uint32_t rank, uint32_t peer) {
  const std::string by_handle = why_not(ways.by_handle, rank, peer);
  if (ways.by_descriptor.nranks == 0) return by_handle;
  const std::string by_descriptor = why_not(ways.by_descriptor, rank, peer);
  if (ways.by_handle.direct(rank, peer)) return by_descriptor + ", and others have file descriptors alone";
  if (ways.by_descriptor.direct(rank, peer)) return by_handle + ", and file descriptors join no more pairs";
  return by_handle == by_descriptor ? by_handle : by_handle + "; " + by_descriptor;
}

// Up to three lines of a rank: "rank 0: GPU memory joins it with rank(s) 1, 2", "rank 0: file descriptors share GPU memory
// (rank 1: the IPC handle of its memory cannot be opened)" and "rank 0: pinned host memory joins it with rank 3 (no peer
// access between the GPUs)".
void log_ways(uint32_t rank, const Ways &ways) {
  if (!logs(LogLevel::kInfo)) return;
  std::string direct, pinned, shared;
  for (uint32_t peer = 0; peer < ways.chosen().nranks; ++peer) {
    if (peer == rank || ways.chosen().between(rank, peer) == Obstacle::kElsewhere) continue;
    if (!ways.direct(rank, peer)) {
      pinned += format("%s rank %u (%s)", pinned.empty() ? "" : ",", peer, why_pinned(ways, rank, peer).c_str());
      continue;
    }
    direct += format("%s %u", direct.empty() ? "" : ",", peer);
    if (!ways.by_handle.direct(rank, peer))
      shared += format("%srank %u: %s", shared.empty() ? "" : ", ", peer, why_not(ways.by_handle, rank, peer).c_str());
  }
  if (!direct.empty()) log(LogLevel::kInfo, "rank %u: GPU memory joins it with rank(s)%s", rank, direct.c_str());
  if (!shared.empty()) log(LogLevel::kInfo, "rank %u: file descriptors share GPU memory (%s)", rank, shared.c_str());
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
    case Obstacle::kElsewhere:
      return "it is on another server";
    case Obstacle::kForbidden:
      return "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access";
    case Obstacle::kNoPeerAccess:
      return "no peer access between the GPUs";
    case Obstacle::kNoHandle:
      return "no IPC handle of its memory can be made";
    case Obstacle::kNotOpened:
      return "the IPC handle of its memory cannot be opened";
    case Obstacle::kNoDescriptor:
      return "no file descriptor of its memory can be made";
    case Obstacle::kNotMapped:
      return "the file descriptor of its memory cannot be mapped";
    case Obstacle::kNotRead:
      return "reading its memory failed";
    case Obstacle::kWrongWord:
      return "its memory gives wrong data: an IOMMU or ACS between the GPUs?";
  }
  return "";
}

uint32_t Obstacles::direct_pairs() const {
  uint32_t pairs = 0;
  for (uint32_t a = 0; a < nranks; ++a)
    for (uint32_t b = a + 1; b < nranks; ++b) pairs += direct(a, b) ? 1 : 0;
  return pairs;
}

PinnedPairs Ways::pinned_pairs(const Placement &placement) const {
  PinnedPairs pairs;
  for (uint32_t a = 0; a < chosen().nranks; ++a)
    for (uint32_t b = a + 1; b < chosen().nranks; ++b)
      if (!direct(a, b) && placement.is_here(a) && placement.is_here(b))
        pairs.insert(std::minmax(placement.plan_rank[a], placement.plan_rank[b]));
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
  mine.describable = has_descriptors(*device);
  mine.only_host_memory = context.only_host_memory ? 1 : 0;
  std::vector<WordPlace> places;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, mine, &places));
  ways->by_handle.nranks = context.nranks;
  Opener opener(device, context.only_host_memory, memory);
  std::vector<Obstacle> row(context.nranks, Obstacle::kNone);
  for (uint32_t peer = 0; peer < context.nranks; ++peer)
    if (!context.placement.is_here(peer))
      row[peer] = Obstacle::kElsewhere;
    else if (peer != context.rank)
      row[peer] = opener.look(places[peer]);
  COLLC_RETURN_IF_FAILED(exchange_rows(context.exchange, row, &ways->by_handle.all));
  if (are_worth_a_try(ways->by_handle, places))
    COLLC_RETURN_IF_FAILED(try_descriptors(context, *device, opener, places, ways, memory));
  log_ways(context.rank, *ways);
  return {};
}

}  // namespace collc::cuda
