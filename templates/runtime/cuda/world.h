// The state that the ranks of one communicator in one process share: the plan in the form for devices, and the arenas of all
// ranks.
//
// Owner: the CudaRanks, together. Threads: the threads that create and end these ranks; a mutex guards what changes. The plan
// does not change after join().
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "bootstrap/exchange_fd.h"
#include "executor/backend.h"
#include "cuda/copy_words.h"
#include "cuda/device_plan.h"
#include "cuda/descriptors.h"
#include "cuda/deferred_frees.h"
#include "cuda/device.h"
#include "cuda/ways.h"
#include "plan/overrides.h"

namespace collc::cuda {

// The facts that a rank publishes about its memory.
struct RankMemory {
  unsigned char process[16];  // random, the same for all ranks of a process
  Uuid uuid;
  Address arena;  // in that process
  uint64_t bytes;  // of virtual memory, whose descriptor others get; 0: `handle` counts
  IpcHandle handle;  // of the arena, for other processes
  uint32_t shareable;  // 0: `handle` could not be made
  SocketName loans;  // where it hears of buffers that others lend (loans.h); empty: it reads none
};

constexpr uint32_t kNobody = 0xffffffff;

// The facts that a rank publishes before any rank allocates: its GPU, and its user's settings.
struct RankSettings {
  Uuid uuid;
  Overrides overrides;
  uint32_t copies_from;  // COLLC_COPY_ENGINES
  uint32_t orders_copies;  // its GPU's streams wait for words in memory
  uint32_t has_ll128;  // its GPU has the kernels
  uint32_t cut_off;  // a rank that LL128's lines do not reach from here; kNobody: none. Known after a second round
  char problem[160];  // what is wrong with a variable; empty: nothing
};

// COLLC_THREADS: of a block, at most. Ranks may differ: nothing that they hand each other depends on it.
Status read_threads(uint32_t *most);
// Names the first rank that has a wrong value, or the first two that differ.
Status compare_settings(const std::vector<RankSettings> &settings);
// The NCCL rank of a peer in the plan whose link to this rank on `device` may tear lines of LL128, or kNobody.
Status find_cut_off(const RankContext &context, const Device *device, const std::vector<RankSettings> &settings,
                    const Ways &ways, uint32_t *peer);
// Writes whether LL128 runs between all ranks. Fails if COLLC_PROTO requests LL128 and it does not.
Status decide_ll128(const std::vector<RankSettings> &settings, bool *runs);

// The decisions of all ranks of a communicator before they allocate; the same on all of them.
struct Agreed {
  Overrides overrides;
  bool has_ll128 = false;  // between all of them
  bool by_descriptor = false;  // arenas are virtual memory, which file descriptors share between processes
  PinnedPairs pinned;  // ranks of the plan on this machine that do not reach each other's GPU memory
  Elsewhere elsewhere;  // ranks on other machines
  uint64_t copied_piece[kCopyLanes] =
      {};  // bytes of a slot of copies between ranks that decide apart, by lane (staged_copies.h); 0: there are none
  std::string no_copies;  // why, where they are asked for
};

// The NCCL ranks in other processes of this machine. They may map exported memory from find_ways() on.
std::vector<uint32_t> find_importers(const RankContext &context);

class World {
 public:
  // The world of this process for a communicator; created by the first caller.
  static Status join(const RankContext &context, const Agreed &agreed, std::shared_ptr<World> *world);
  ~World();
  World(const World &) = delete;
  World &operator=(const World &) = delete;

  const DevicePlan &plan() const { return plan_; }
  const Allocation &allocation() const { return *allocation_; }
  Segment &segment() { return *segment_; }
  uint32_t nranks() const { return plan_.nranks; }
  // Returns true if a rank of the plan is in this process, on a device.
  bool shares(uint32_t plan_rank, const Device *device) const {
    const auto found = mine_.find(plan_rank);
    return found != mine_.end() && found->second == device;
  }
  // Returns true if two ranks of the plan, the first one of this process, may read each other's buffers in place. Their GPUs
  // must reach each other. In one process that suffices, because peer access of contexts is on then (ways.h). In two processes
  // both ranks must listen for loans. The same on both sides.
  bool reads_buffers(uint32_t own, uint32_t peer) const { return mine_.count(peer) != 0 || lends_abroad(own, peer); }
  // Returns true if `peer`, in another process, may read the buffers of `own` in place, at other addresses.
  bool lends_abroad(uint32_t own, uint32_t peer) const {
    return mine_.count(peer) == 0 && peers_[own].loans.text[0] != '\0' && peers_[peer].loans.text[0] != '\0';
  }
  // Returns the ranks of the plan in other processes that may read a rank's buffers, in their order.
  std::vector<uint32_t> readers_abroad(uint32_t plan_rank) const;
  const char *loans_of(uint32_t plan_rank) const { return peers_[plan_rank].loans.text; }
  // Returns the ranks of the plan that read a rank's buffers in place, or the other way round. Complete once all ranks have
  // exchanged.
  std::set<uint32_t> by_address_with(uint32_t plan_rank) const;
  // Returns true if any rank of this process has such a peer: the same for all of them.
  bool goes_by_address() const;
  // Returns true if all ranks are in this process. Complete once all ranks have exchanged.
  bool is_whole() const { return mine_.size() == plan_.nranks; }
  // Returns true if also their GPUs have access to each other's memory.
  bool copies_between_all() const { return is_whole() && !plan_.pinned.joins_any(); }
  // Ranks of this process on a device; complete once all ranks have exchanged.
  uint32_t ranks_on(const Device *device) const;
  // Returns the protocol of a call of `bytes` (count * element size) of a program of the tables; the same on all ranks.
  uint32_t protocol_of(uint32_t program, uint64_t bytes) const { return plan_.protocol_of(program, bytes); }
  // Bytes of shared memory for the largest program.
  uint32_t shared_bytes() const;

  // Finds the address of `peer`'s slots for staged copies, for `device`.
  Status staging_of(uint32_t peer, const Device *device, Address *at);
  // Pins a part of the segment; once for all ranks of this process that have the same one.
  Status pin(char *at, uint64_t bytes);
  // Takes what a rank that ends leaves. `is_complete`: its creation had not failed.
  void inherit(std::unique_ptr<DeferredFrees> frees, bool is_complete);
  // Allocates and clears a rank's arena on its device. `file`: its descriptor, where these share arenas.
  Status add_rank(uint32_t plan_rank, const Device *device, RankMemory *memory, Descriptor *file);
  // Takes all ranks' memories (by rank of the plan); refuses GPUs that are shared without leave.
  Status set_peers(const std::vector<RankMemory> &memories, const Placement &placement);
  // Finds the address of `peer`'s arena, for kernels on `device`.
  Status arena_of(uint32_t peer, const Device *device, Address *arena);
  // Maps the arena of a peer in another process, whose descriptor this is.
  Status map_arena(uint32_t peer, const Device *device, int file);
  // The same for halves of FIFOs and transfers that proxies join, which cannot be elsewhere. `need`: their use, for errors.
  Status pin_halves(char *at, uint64_t bytes, const char *need);

 private:
  World(const RankContext &context, const Agreed &agreed);
  Status allocate_arena(const Device *device, size_t bytes, RankMemory *memory, Descriptor *file);
  Status open_peer(uint32_t peer, const Device *device, Address *arena);

  std::mutex mutex_;
  DevicePlan plan_;
  std::string problem_;
  const Allocation *allocation_;
  std::shared_ptr<Segment> segment_;
  std::vector<uint32_t> nccl_rank_;
  std::vector<uint32_t> importers_;  // NCCL ranks of other processes that may map memory of this one
  bool is_complete_ = true;  // no rank of this process has failed before its creation was complete
  std::set<uint32_t> joined_;  // NCCL ranks of this process, also those that have failed since
  std::map<uint32_t, const Device *> mine_;  // by rank of the plan
  std::vector<RankMemory> peers_;
  std::map<std::pair<const Device *, uint32_t>, Address> arenas_;  // of other processes, by rank of the plan
  std::vector<char *> pinned_;  // parts of the segment
  std::vector<size_t> staging_at_;  // by rank of the plan, in its arena
  bool by_descriptor_;
  std::unique_ptr<DeferredFrees> frees_;  // when the last rank of this process has ended
};

}  // namespace collc::cuda
