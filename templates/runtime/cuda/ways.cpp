#include "cuda/ways.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/log.h"
#include "base/random.h"
#include "cuda/fill.h"

namespace collc::cuda {
namespace {

constexpr size_t kWordBytes = 16;

// A word on a GPU, for others to read.
struct Word {
  Address at;        // in the process of its rank; 0: it could not be made
  uint64_t bytes;    // of the virtual memory that it is in; 0: none
  IpcHandle handle;  // of its memory; for words that are not in virtual memory
  uint32_t has_handle;
  unsigned char content[kWordBytes];
};

bool can_access(const Device &device, DeviceNumber theirs) {
  int reachable = 0;
  return driver().can_access_peer(&reachable, device.number, theirs) == 0 && reachable != 0;
}

// Peer access, which memory of cuMemAlloc and of user buffers needs.
Obstacle open_peer(const Device &device, const Device &theirs) {
  if (!can_access(device, theirs.number)) return Obstacle::kNoPeerAccess;
  const Result enabled = driver().enable_peer(theirs.context, 0);
  return enabled == 0 || enabled == kPeerAccessAlreadyEnabled ? Obstacle::kNone : Obstacle::kNoPeerAccess;
}

// How this rank reaches the others, one of them after the other.
class Opener {
 public:
  Opener(const RankContext &context, const Device *device, DeferredFrees *frees)
      : context_(context), device_(device), frees_(frees) {}
  // After a failure another rank of this process may still read the word.
  ~Opener() {
    for (const VirtualMemory &memory : mapped_) frees_->unmap(device_, memory);
  }
  Opener(const Opener &) = delete;
  Opener &operator=(const Opener &) = delete;

  // Room for a word that this GPU has read.
  Status begin() {
    COLLC_RETURN_IF_FAILED(check(driver().allocate(&room_, kWordBytes), "allocating GPU memory"));
    frees_->free_memory(device_, room_);
    RankPlace mine = {};
    std::memcpy(mine.process, process_token(), sizeof mine.process);
    mine.uuid = device_->uuid;
    mine.device = device_;
    mine.only_host_memory = context_.only_host_memory ? 1 : 0;
    return exchange(context_.exchange, mine, &places_);
  }

  // Returns true if the ranks are in several processes; the same on all ranks.
  bool has_processes() const {
    return std::any_of(places_.begin(), places_.end(), [this](const RankPlace &place) {
      return std::memcmp(place.process, places_[0].process, sizeof place.process) != 0;
    });
  }

  // Words are in virtual memory, and descriptors of it are handed on.
  Status try_descriptors(Obstacles *obstacles) {
    Word mine = {};
    Descriptor file;
    if (has_descriptors(*device_)) COLLC_RETURN_IF_FAILED(put_virtual_word(&mine, &file));
    std::vector<Word> words;
    COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &words));
    std::vector<Descriptor> files;
    COLLC_RETURN_IF_FAILED(exchange_descriptors(context_, file, &files));
    COLLC_RETURN_IF_FAILED(
        look_at_all([&](uint32_t peer, Address *at) { return map_word(places_[peer], words[peer], files[peer].get(), at); },
                    words, obstacles));
    // All ranks have read all words.
    mapped_.erase(std::remove_if(mapped_.begin(), mapped_.end(), unmap), mapped_.end());
    return {};
  }

  Status try_handles(Obstacles *obstacles) {
    Word mine = {};
    COLLC_RETURN_IF_FAILED(random_bytes(mine.content, sizeof mine.content));
    COLLC_RETURN_IF_FAILED(put_on_device(mine.content, sizeof mine.content, &mine.at));
    frees_->free_exported(device_, mine.at);
    mine.has_handle = driver().ipc_get(&mine.handle, mine.at) == 0;
    std::vector<Word> words;
    COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &words));
    return look_at_all([&](uint32_t peer, Address *at) { return open_word(places_[peer], words[peer], at); }, words, obstacles);
  }

 private:
  static bool is_here(const RankPlace &place) { return std::memcmp(place.process, process_token(), sizeof place.process) == 0; }
  // All ranks on one GPU reach the memory of that GPU.
  bool is_same_gpu(const RankPlace &place) const { return std::memcmp(&place.uuid, &device_->uuid, sizeof place.uuid) == 0; }
  // A GPU that this process does not see may still be one that it reaches.
  bool sees_no_way(const RankPlace &place) const {
    DeviceNumber number = 0;
    return !is_same_gpu(place) && find_visible(place.uuid, &number) && !can_access(*device_, number);
  }
  // The memory of a process on its own GPU is no peer's.
  bool is_forbidden(const RankPlace &place) const {
    return (context_.only_host_memory || place.only_host_memory != 0) && !(is_here(place) && is_same_gpu(place));
  }

  // `find(peer, at)` says where the word of a rank is for this GPU, or why it is nowhere. Ranks on one device of a process
  // share their memory.
  template <class Find>
  Status look_at_all(Find find, const std::vector<Word> &words, Obstacles *obstacles) {
    std::vector<Obstacle> row(context_.nranks, Obstacle::kNone);
    for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
      Address at = 0;
      if (!context_.placement.is_here(peer))
        row[peer] = Obstacle::kElsewhere;
      else if (is_forbidden(places_[peer]))
        row[peer] = Obstacle::kForbidden;
      else if (peer != context_.rank && !(is_here(places_[peer]) && places_[peer].device == device_))
        row[peer] = find(peer, &at);
      if (at != 0) row[peer] = read_word(at, words[peer].content);
    }
    obstacles->nranks = context_.nranks;
    return exchange_rows(context_.exchange, row, &obstacles->all);
  }

  // Reads through memory of this GPU: in a copy straight to the host the driver might have the other GPU copy.
  Obstacle read_word(Address from, const unsigned char (&expected)[kWordBytes]) const {
    unsigned char word[kWordBytes] = {};
    const Status read = alone("reading another GPU's memory", [&](const Driver &cu, Stream stream) {
      const Result copied = cu.copy_async(room_, from, sizeof word, stream);
      return copied != 0 ? copied : cu.download_async(word, room_, sizeof word, stream);
    });
    if (!read.ok()) return Obstacle::kNotRead;
    return std::memcmp(word, expected, sizeof word) == 0 ? Obstacle::kNone : Obstacle::kWrongWord;
  }

  Status put_virtual_word(Word *mine, Descriptor *file) {
    VirtualMemory memory;
    const Status status = make_virtual(*device_, sizeof mine->content, &memory, file);
    if (memory.bytes != 0) mapped_.push_back(memory);
    if (!status.ok()) {
      file->reset();
      log(LogLevel::kInfo, "no file descriptor of GPU memory: %s", status.text().c_str());
      return {};
    }
    COLLC_RETURN_IF_FAILED(random_bytes(mine->content, sizeof mine->content));
    mine->at = memory.at;
    mine->bytes = memory.bytes;
    return alone("filling GPU memory", [&](const Driver &cu, Stream stream) {
      return cu.upload_async(memory.at, mine->content, sizeof mine->content, stream);
    });
  }

  // Where GPUs of one process have no peer access, they get none to virtual memory either.
  Obstacle map_word(const RankPlace &place, const Word &theirs, int file, Address *at) {
    if (is_here(place)) {
      if (const Obstacle obstacle = open_peer(*device_, *place.device); obstacle != Obstacle::kNone) return obstacle;
      if (theirs.bytes == 0) return Obstacle::kNoDescriptor;
      if (!grant(*device_, {theirs.at, theirs.bytes})) return Obstacle::kNoPeerAccess;
      *at = theirs.at;
      return Obstacle::kNone;
    }
    if (sees_no_way(place)) return Obstacle::kNoPeerAccess;
    if (theirs.bytes == 0) return Obstacle::kNoDescriptor;
    VirtualMemory mapped;
    if (!map_virtual(*device_, file, theirs.bytes, &mapped)) return Obstacle::kNotMapped;
    mapped_.push_back(mapped);
    *at = mapped.at;
    return Obstacle::kNone;
  }

  Obstacle open_word(const RankPlace &place, const Word &theirs, Address *at) const {
    *at = theirs.at;
    if (is_here(place)) {
      const Obstacle obstacle = open_peer(*device_, *place.device);
      if (obstacle != Obstacle::kNone) *at = 0;
      return obstacle;
    }
    *at = 0;
    if (sees_no_way(place)) return Obstacle::kNoPeerAccess;
    if (theirs.has_handle == 0) return Obstacle::kNoHandle;
    if (driver().ipc_open(at, theirs.handle, kIpcLazyPeerAccess) != 0) {
      *at = 0;
      return Obstacle::kNotOpened;
    }
    frees_->close_handle(device_, *at);
    return Obstacle::kNone;
  }

  const RankContext &context_;
  const Device *device_;
  DeferredFrees *frees_;
  std::vector<RankPlace> places_;
  std::vector<VirtualMemory> mapped_;  // the words of all ranks
  Address room_ = 0;
};

// Returns true if IPC handles might join a pair that descriptors do not join; the same on all ranks.
bool may_need_handles(const Obstacles &by_descriptor) {
  return by_descriptor.nranks == 0 || std::any_of(by_descriptor.all.begin(), by_descriptor.all.end(), [](Obstacle obstacle) {
           return obstacle == Obstacle::kNoDescriptor || obstacle == Obstacle::kNotMapped;
         });
}

// Why memory of one rank does not reach the other.
std::string why_not(const Obstacles &obstacles, uint32_t rank, uint32_t peer) {
  const Obstacle ours = obstacles.between(rank, peer);
  return describe(ours == Obstacle::kNone ? obstacles.between(peer, rank) : ours);
}

std::string why_pinned(const Ways &ways, uint32_t rank, uint32_t peer) {
  if (ways.by_descriptor.nranks == 0) return why_not(ways.by_handle, rank, peer);
  const std::string by_descriptor = why_not(ways.by_descriptor, rank, peer);
  if (ways.by_handle.nranks == 0) return by_descriptor;
  const std::string by_handle = why_not(ways.by_handle, rank, peer);
  if (ways.by_descriptor.direct(rank, peer)) return by_handle + ", and others have IPC handles alone";
  if (ways.by_handle.direct(rank, peer)) return by_descriptor + ", and IPC handles join no more pairs";
  return by_handle == by_descriptor ? by_handle : by_descriptor + "; " + by_handle;
}

// Up to three lines of a rank: "rank 0: GPU memory joins it with rank(s) 1, 2", "rank 0: IPC handles share GPU memory (rank 1:
// no file descriptor of its memory can be made)" and "rank 0: pinned host memory joins it with rank 3 (no peer access between
// the GPUs)".
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
    if (ways.by_descriptor.nranks != 0 && !ways.by_descriptor.direct(rank, peer))
      shared += format("%srank %u: %s", shared.empty() ? "" : ", ", peer, why_not(ways.by_descriptor, rank, peer).c_str());
  }
  if (!direct.empty()) log(LogLevel::kInfo, "rank %u: GPU memory joins it with rank(s)%s", rank, direct.c_str());
  if (!shared.empty()) log(LogLevel::kInfo, "rank %u: IPC handles share GPU memory (%s)", rank, shared.c_str());
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

Status find_ways(const RankContext &context, const Device *device, Ways *ways, DeferredFrees *frees) {
  Opener opener(context, device, frees);
  COLLC_RETURN_IF_FAILED(opener.begin());
  if (opener.has_processes()) COLLC_RETURN_IF_FAILED(opener.try_descriptors(&ways->by_descriptor));
  if (may_need_handles(ways->by_descriptor)) COLLC_RETURN_IF_FAILED(opener.try_handles(&ways->by_handle));
  const uint32_t joined = ways->by_descriptor.nranks == 0 ? 0 : ways->by_descriptor.direct_pairs();
  // Where neither joins any pair, nobody needs virtual memory.
  ways->chose_descriptors = ways->by_handle.nranks == 0 || (joined != 0 && joined >= ways->by_handle.direct_pairs());
  log_ways(context.rank, *ways);
  return {};
}

}  // namespace collc::cuda
