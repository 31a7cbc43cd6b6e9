#include "cuda/world.h"

#include <algorithm>
#include <cstring>

#include "base/environment.h"
#include "cuda/fill.h"
#include "cuda/lending.h"

namespace collc::cuda {
namespace {

constexpr size_t kStagingAlignment = 256;

std::mutex worlds_mutex;
std::map<Segment *, std::weak_ptr<World>> &worlds() {
  static auto *const all = new std::map<Segment *, std::weak_ptr<World>>;  // outlives every thread
  return *all;
}

}  // namespace

World::World(const RankContext &context, const Agreed &agreed)
    : allocation_(context.placement.allocation),
      segment_(context.segment),
      nccl_rank_(context.placement.nccl_rank),
      importers_(find_importers(context)),
      by_descriptor_(agreed.by_descriptor),
      frees_(std::make_unique<DeferredFrees>()) {
  problem_ = make_device_plan(*context.tables, *allocation_,
                              {nccl_rank_, agreed.overrides, agreed.has_ll128, agreed.pinned, agreed.elsewhere}, plan_);
  mark_variants(written_variants(), plan_.steps, &plan_.channels);
  const uint64_t piece = agreed.copied_piece[static_cast<uint32_t>(CopyLane::kGpu)];
  if (piece == 0) return;
  for (size_t &bytes : plan_.arena_bytes) {
    staging_at_.push_back((bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment);
    bytes = staging_at_.back() + kStagingSlots * piece;
  }
}

Status World::join(const RankContext &context, const Agreed &agreed, std::shared_ptr<World> *world) {
  const std::lock_guard<std::mutex> lock(worlds_mutex);
  std::weak_ptr<World> &entry = worlds()[context.segment.get()];
  *world = entry.lock();
  if (*world == nullptr) {
    world->reset(new World(context, agreed));
    entry = *world;
  }
  (*world)->joined_.insert(context.rank);
  if (!(*world)->problem_.empty()) return fail(ncclInvalidUsage, "%s", (*world)->problem_.c_str());
  return {};
}

std::vector<uint32_t> find_importers(const RankContext &context) {
  std::vector<uint32_t> importers;
  for (uint32_t rank = 0; rank < context.nranks; ++rank)
    if (context.placement.is_here(rank) && context.processes[rank] != context.processes[context.rank])
      importers.push_back(rank);
  return importers;
}

std::set<uint32_t> World::by_address_with(uint32_t plan_rank) const {
  std::set<uint32_t> peers;
  const auto reaches = [&](uint32_t peer) { return reads_buffers(plan_rank, peer); };
  for (const EndPlace &place : plan_.ends[plan_rank])
    if (cuda::goes_by_address(plan_, plan_rank, place, reaches)) peers.insert(place.peer);
  return peers;
}

std::vector<uint32_t> World::readers_abroad(uint32_t plan_rank) const {
  std::set<uint32_t> readers;
  const auto abroad = [&](uint32_t peer) { return lends_abroad(plan_rank, peer); };
  for (const EndPlace &place : plan_.ends[plan_rank])
    if (place.writes && cuda::goes_by_address(plan_, plan_rank, place, abroad)) readers.insert(place.peer);
  return {readers.begin(), readers.end()};
}

bool World::goes_by_address() const {
  return std::any_of(mine_.begin(), mine_.end(), [this](const auto &rank) { return !by_address_with(rank.first).empty(); });
}

uint32_t World::ranks_on(const Device *device) const {
  uint32_t count = 0;
  for (const auto &[rank, where] : mine_) count += where == device;
  return count;
}

uint32_t World::shared_bytes() const { return plan_.max_shared; }

Status World::allocate_arena(const Device *device, size_t bytes, RankMemory *memory, Descriptor *file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Pinned memory joins a rank without descriptors with all others where the others have them.
  if (!by_descriptor_ || !has_descriptors(*device)) {
    COLLC_RETURN_IF_FAILED(check(driver().allocate(&memory->arena, std::max(bytes, size_t{16})), "allocating"));
    frees_->free_exported(device, memory->arena);
    return {};
  }
  VirtualMemory arena;
  const Status status = make_virtual(*device, bytes, &arena, file);
  if (arena.bytes != 0) frees_->unmap(device, arena);
  memory->arena = arena.at;
  memory->bytes = arena.bytes;
  return status;
}

Status World::add_rank(uint32_t plan_rank, const Device *device, RankMemory *memory, Descriptor *file) {
  *memory = {};
  std::memcpy(memory->process, process_token(), sizeof memory->process);
  memory->uuid = device->uuid;
  // A rank that is alone on its machine has nothing to share, but an address that others know all the same.
  const size_t bytes = std::max(plan_.arena_bytes[plan_rank], size_t{16});
  if (const Status why = allocate_arena(device, bytes, memory, file); !why.ok())
    return fail(ncclUnhandledCudaError, "no %.0f MB for the FIFOs of a rank on GPU %d: %s", static_cast<double>(bytes) / 1e6,
                device->number, why.text().c_str());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    mine_[plan_rank] = device;
  }
  COLLC_RETURN_IF_FAILED(alone("clearing GPU memory", [&](const Driver &driver, Stream stream) {
    return driver.fill_async(memory->arena, 0, bytes, stream);
  }));
  memory->shareable = !by_descriptor_ && driver().ipc_get(&memory->handle, memory->arena) == 0;
  return {};
}

Status World::set_peers(const std::vector<RankMemory> &memories, const Placement &placement) {
  if (!is_set("COLLC_SHARE_GPU")) {
    for (size_t a = 0; a < memories.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (std::memcmp(&memories[a].uuid, &memories[b].uuid, sizeof(Uuid)) == 0 &&
            !plan_.elsewhere.apart(static_cast<uint32_t>(a), static_cast<uint32_t>(b)))
          return fail(ncclInvalidUsage, "ranks %u and %u are on the same GPU; COLLC_SHARE_GPU=1 allows it",
                      std::min(placement.nccl_rank[a], placement.nccl_rank[b]),
                      std::max(placement.nccl_rank[a], placement.nccl_rank[b]));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  peers_ = memories;
  return {};
}

Status World::arena_of(uint32_t peer, const Device *device, Address *arena) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = arenas_.find({device, peer});
  if (known == arenas_.end()) return open_peer(peer, device, arena);
  *arena = known->second;
  return {};
}

// Called with the mutex held. GPUs of this process have had access to each other's memory since ways.h looked.
Status World::open_peer(uint32_t peer, const Device *device, Address *arena) {
  const Driver &cu = driver();
  const RankMemory &memory = peers_[peer];
  if (std::memcmp(memory.process, process_token(), sizeof memory.process) == 0) {
    *arena = memory.arena;
    if (by_descriptor_ && mine_.at(peer) != device && !grant(*device, {memory.arena, memory.bytes}))
      return fail(ncclUnhandledCudaError, "GPU %d gets no access to the memory of rank %u", device->number, nccl_rank_[peer]);
    return {};
  }
  if (memory.shareable == 0)
    return fail(ncclUnhandledCudaError, "the GPU memory of rank %u cannot be shared between processes here", nccl_rank_[peer]);
  const std::string what = format("mapping the GPU memory of rank %u", nccl_rank_[peer]);
  COLLC_RETURN_IF_FAILED(check(cu.ipc_open(arena, memory.handle, kIpcLazyPeerAccess), what.c_str()));
  frees_->close_handle(device, *arena);
  arenas_[{device, peer}] = *arena;
  return {};
}

Status World::map_arena(uint32_t peer, const Device *device, int file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  VirtualMemory mapped;
  if (!map_virtual(*device, file, peers_[peer].bytes, &mapped))
    return fail(ncclUnhandledCudaError, "the GPU memory of rank %u cannot be mapped by its file descriptor", nccl_rank_[peer]);
  frees_->unmap(device, mapped);
  arenas_[{device, peer}] = mapped.at;
  return {};
}

Status World::pin_halves(char *at, uint64_t bytes, const char *need) {
  if (const Status why = pin(at, bytes); !why.ok())
    return fail(ncclUnhandledCudaError, "%s needs pinned host memory, and %.1f MB cannot be pinned: %s", need,
                static_cast<double>(bytes) / 1e6, why.text().c_str());
  return {};
}

Status World::pin(char *at, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(pinned_.begin(), pinned_.end(), at) != pinned_.end()) return {};
  COLLC_RETURN_IF_FAILED(check(driver().register_host(at, bytes, kHostPortableMapped), "pinning"));
  frees_->unpin(at);
  pinned_.push_back(at);
  return {};
}

Status World::staging_of(uint32_t peer, const Device *device, Address *at) {
  COLLC_RETURN_IF_FAILED(arena_of(peer, device, at));
  *at += staging_at_[peer];
  return {};
}

void World::inherit(std::unique_ptr<DeferredFrees> frees, bool is_complete) {
  const std::lock_guard<std::mutex> lock(mutex_);
  frees_->merge(std::move(frees));
  is_complete_ &= is_complete;
}

// The last rank of this process ends.
World::~World() {
  {
    const std::lock_guard<std::mutex> lock(worlds_mutex);
    const auto entry = worlds().find(segment_.get());
    if (entry != worlds().end() && entry->second.expired()) worlds().erase(entry);
  }
  frees_->set_ranks(segment_, {joined_.begin(), joined_.end()}, std::move(importers_));
  // The other ranks end the communicator too, unless it was aborted, or they do not know yet that its creation has failed.
  if (segment_->aborted() || !is_complete_)
    dispose_without_waiting(std::move(frees_));
  else
    dispose(std::move(frees_));
}

}  // namespace collc::cuda
