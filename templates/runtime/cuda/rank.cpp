#include "cuda/rank.h"

#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "collc/collective_traits.h"
#include "control/last_calls.h"
#include "cuda/reports.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {
namespace {

// Maps the arenas of ranks in other processes by the descriptors that these hand out. `own`: the descriptor of this rank's
// arena.
Status map_arenas(const RankContext &context, const Device *device, const Descriptor &own, World *world) {
  std::vector<Descriptor> files;
  COLLC_RETURN_IF_FAILED(exchange_descriptors(context, own, &files));
  for (uint32_t r = 0; r < context.nranks; ++r) {
    const uint32_t peer = context.placement.plan_rank[r];
    if (files[r] && !world->plan().pinned.joins(context.plan_rank(), peer))
      COLLC_RETURN_IF_FAILED(world->map_arena(peer, device, files[r].get()));
  }
  return {};
}

}  // namespace

Status CudaRank::open(const RankContext &context, std::unique_ptr<RankBackend> *made) {
  set_release_hooks({any_kernel_runs, keep_watching});
  const Driver *loaded = nullptr;
  COLLC_RETURN_IF_FAILED(load_driver(&loaded));
  const Uncaptured uncaptured;
  std::unique_ptr<CudaRank> rank(new CudaRank(context));
  COLLC_RETURN_IF_FAILED(current_device(&rank->device_));
  COLLC_RETURN_IF_FAILED(rank->launches_.open(rank->device_, context.orders_launches));
  if (context.nranks == 1) {
    rank->launches_.choose_threads_alone();
    COLLC_RETURN_IF_FAILED(rank->memory_.open_alone());
  } else {
    COLLC_RETURN_IF_FAILED(rank->open_memory());
  }
  *made = std::move(rank);
  return {};
}

// Agrees with the other ranks on everything that their users ask for, and on whether LL128 runs between all of them.
Status CudaRank::agree(Agreed *agreed, uint32_t *most_threads) {
  RankSettings mine = {};
  mine.uuid = device_->uuid;
  mine.has_ll128 = device_->has_ll128();
  mine.cut_off = kNobody;
  // Every rank learns of an invalid value, not only the rank that has it.
  Status read = read_overrides(&mine.overrides);
  if (read.ok()) read = read_threads(most_threads);
  if (read.ok()) read = buffers_.read_settings();
  if (read.ok()) read = copies_.read_settings(*device_, &mine);
  if (mine.overrides.channels == 0) mine.overrides.channels = context_.most_channels;
  if (!read.ok()) std::snprintf(mine.problem, sizeof mine.problem, "%s", read.text().c_str());
  std::vector<RankSettings> settings;
  COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &settings));
  COLLC_RETURN_IF_FAILED(compare_settings(settings));
  Ways ways;
  COLLC_RETURN_IF_FAILED(find_ways(context_, device_, &ways, frees_.get()));
  COLLC_RETURN_IF_FAILED(find_cut_off(context_, device_, settings, ways, &mine.cut_off));
  COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &settings));
  agreed->overrides = mine.overrides;
  agreed->by_descriptor = ways.chose_descriptors;
  agreed->pinned = ways.pinned_pairs(context_.placement);
  COLLC_RETURN_IF_FAILED(find_elsewhere(context_, &agreed->elsewhere));
  copies_.agree(settings, agreed);
  if (agreed->elsewhere.any()) return follow_proxies(context_, agreed->elsewhere, &agreed->overrides);
  COLLC_RETURN_IF_FAILED(decide_ll128(settings, &agreed->has_ll128));
  if (agreed->overrides.protocol == static_cast<int32_t>(kLL128) && !agreed->has_ll128) {
    if (context_.rank == 0) log(LogLevel::kWarn, "NCCL_PROTO=LL128 is not followed: LL128 does not run between all ranks");
    agreed->overrides.protocol = -1;
  }
  return {};
}

Status CudaRank::open_memory() {
  Agreed agreed;
  uint32_t most_threads = 0;
  COLLC_RETURN_IF_FAILED(agree(&agreed, &most_threads));
  COLLC_RETURN_IF_FAILED(World::join(context_, agreed, &world_));
  const uint32_t plan_rank = context_.plan_rank();
  RankMemory mine;
  Descriptor file;
  COLLC_RETURN_IF_FAILED(world_->add_rank(plan_rank, device_, &mine, &file));
  buffers_.listen(device_, &mine);
  std::vector<RankMemory> all, memories(context_.nranks);
  COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &all));
  for (uint32_t r = 0; r < context_.nranks; ++r) memories[context_.placement.plan_rank[r]] = all[r];
  COLLC_RETURN_IF_FAILED(world_->set_peers(memories, context_.placement));
  if (agreed.by_descriptor) COLLC_RETURN_IF_FAILED(map_arenas(context_, device_, file, world_.get()));
  COLLC_RETURN_IF_FAILED(launches_.choose_threads(*world_, most_threads));
  COLLC_RETURN_IF_FAILED(connectors_.share(context_, *device_, *world_));
  Connectors connectors;
  COLLC_RETURN_IF_FAILED(connectors_.find_connectors(context_, *device_, world_.get(), &connectors));
  buffers_.mark(*world_, &connectors);
  COLLC_RETURN_IF_FAILED(memory_.open(world_->plan(), plan_rank, context_.timeout_ns(), connectors));
  COLLC_RETURN_IF_FAILED(join_halves(context_));
  buffers_.begin(*world_, memory_.abort_flag());
  shares_.open(world_->plan(), device_->number, connectors_, memory_.class_times());
  COLLC_RETURN_IF_FAILED(copies_.open(*device_, agreed, world_.get()));
  is_watched_ = true;
  return watch(this);
}

uint32_t CudaRank::protocol_of(const Program &program, uint64_t bytes) const {
  if (world_ == nullptr) return program.protocol;
  const Program *first = context_.tables->programs + world_->allocation().first_program;
  return world_->protocol_of(static_cast<uint32_t>(&program - first), bytes);
}

bool CudaRank::can_run(const Program &program, const Call *call) const {
  if (world_ == nullptr) return true;
  const auto number = static_cast<uint32_t>(&program - (context_.tables->programs + world_->allocation().first_program));
  if (!world_->plan().in_switch[number]) return true;
  if (!connectors_.has_multicast()) return false;
  if (call == nullptr || !traits(call->collective).reduces) return true;
  const Reducing how = reducing(static_cast<uint32_t>(call->type), static_cast<uint32_t>(call->op.kind));
  return switch_reduces(how.kernel_type, how.operation);
}

std::vector<ChannelTimes> CudaRank::times() const {
  const Current current(device_->context);
  return memory_.times();
}

uint64_t CudaRank::gpu_bytes() const {
  if (world_ == nullptr) return 0;
  const DevicePlan &plan = world_->plan();
  const uint32_t rank = context_.plan_rank();
  const size_t nends = plan.ends[rank].size() * kProtocols + size_t{2} * context_.nranks * plan.lanes.lanes;
  return plan.arena_bytes[rank] + connectors_.multicast_bytes() + nends * sizeof(FifoEnd) + kTableMessages * sizeof(Message);
}

CudaRank::~CudaRank() {
  if (device_ == nullptr) return;
  const Current current(device_->context);
  const Uncaptured uncaptured;
  // The watcher still carries an abort to kernels that wait.
  const bool ended = launches_.wait_until_ended(context_.stopped), has_gpu = is_alive(*device_);
  if (is_watched_) unwatch(this);
  // Nobody carries an abort to the calls of graphs that are launched from now on, so they must not wait.
  if (has_gpu && memory_.has_abort_flag() && launches_.has_graphs()) memory_.abort();
  if (!ended || launches_.has_graphs()) copies_.release();
  copies_.close();
  // Ranks that wait for this rank must learn that it leaves.
  if (context_.segment != nullptr) context_.segment->leave(context_.rank);
  buffers_.close(frees_.get());
  defer_frees(ended);
  if (world_ != nullptr) {
    world_->inherit(std::move(frees_), is_watched_);
  } else if (context_.nranks > 1) {
    // A rank whose creation has failed may have memory of other processes mapped, and these memory of it.
    frees_->set_ranks(context_.segment, {context_.rank}, find_importers(context_));
    dispose_without_waiting(std::move(frees_));
  } else {
    dispose(std::move(frees_));
  }
}

void CudaRank::defer_frees(bool ended) {
  memory_.leave(frees_.get(), device_);
  connectors_.leave(frees_.get(), device_);
  copies_.leave(frees_.get());
  launches_.leave(frees_.get(), ended);
}

// Streams that wait for a rank know nothing of the kernels' abort flag.
void CudaRank::look_at_copies() const {
  if (!copies_.has_lanes()) return;
  if (context_.stopped() || context_.segment->aborted()) return copies_.release();
  if (context_.timeout == 0) return;
  const std::string late = copies_.find_late(now_ms(), context_.timeout);
  if (late.empty()) return;
  const Segment &segment = *context_.segment;
  const std::string missing = describe_missing(segment, context_.rank, segment.newest_call(context_.rank));
  end(fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for %s, by copy engines%s", context_.timeout,
           context_.rank, late.c_str(), missing.c_str()));
}

void CudaRank::look(bool at_peers) {
  // A reset has also freed the pinned memory, which the rest reads.
  if (!is_alive(*device_)) {
    if (!has_reported_)
      end(fail(ncclUnhandledCudaError, "GPU %d of %s was reset (cudaDeviceReset)", device_->number,
               context_.placement.name_of(context_.rank).c_str()));
    has_reported_ = true;
    return;
  }
  look_at_copies();  // first, because the rest may return early
  if (has_reported_) return;
  Report report;
  uint32_t channel = 0;
  if (memory_.find_report(&report, &channel)) {
    has_reported_ = true;
    return end(describe_report(context_, world_->plan(), shares_.lost(), report, channel));
  }
  if (memory_.is_aborted()) return;
  shares_.look_at_lanes(launches_.runs());
  if (at_peers) context_.segment->board().see(context_.rank);
  if (at_peers && !context_.segment->aborted()) {
    if (const Status failed = peers_.look(launches_.runs()); !failed.ok())
      end(failed);
    else
      shares_.look();
  }
  if (context_.stopped() || context_.segment->aborted()) memory_.abort();
}

}  // namespace collc::cuda
