#include "cuda/rank.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "collc/collective_traits.h"
#include "cuda/deferred_frees.h"
#include "cuda/lending.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {
namespace {}  // namespace

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

// What all ranks of the communicator do alike: what their users ask for, and whether LL128 runs between all of them.
Status CudaRank::agree(Agreed *agreed) {
  RankSettings mine = {};
  mine.uuid = device_->uuid;
  mine.has_ll128 = device_->has_ll128();
  mine.cut_off = kNobody;
  // Every rank learns of an invalid value, not only the one that has it.
  Status read = read_overrides(&mine.overrides);
  if (read.ok()) read = read_threads(&most_threads_);
  if (read.ok()) read = read_lending(&lending_);
  if (read.ok()) read = read_copies(&mine);
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
  agree_on_copies(settings, agreed);
  if (agreed->elsewhere.any()) return follow_couriers(context_, agreed->elsewhere, &agreed->overrides);
  COLLC_RETURN_IF_FAILED(decide_ll128(settings, &agreed->has_ll128));
  if (agreed->overrides.protocol == static_cast<int32_t>(kLL128) && !agreed->has_ll128) {
    if (context_.rank == 0) log(LogLevel::kWarn, "NCCL_PROTO=LL128 is not followed: LL128 does not run between all ranks");
    agreed->overrides.protocol = -1;
  }
  return {};
}

Status CudaRank::open_memory() {
  Agreed agreed;
  COLLC_RETURN_IF_FAILED(agree(&agreed));
  COLLC_RETURN_IF_FAILED(World::join(context_, agreed, &world_));
  RankMemory mine;
  Descriptor file;
  COLLC_RETURN_IF_FAILED(world_->add_rank(context_.plan_rank(), device_, &mine, &file));
  listen_for_loans(&mine);
  std::vector<RankMemory> all, memories(context_.nranks);
  COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &all));
  for (uint32_t r = 0; r < context_.nranks; ++r) memories[context_.placement.plan_rank[r]] = all[r];
  COLLC_RETURN_IF_FAILED(world_->set_peers(memories, context_.placement));
  if (agreed.by_descriptor) COLLC_RETURN_IF_FAILED(map_arenas(file));
  COLLC_RETURN_IF_FAILED(launches_.choose_threads(*world_, most_threads_));
  COLLC_RETURN_IF_FAILED(connectors_.share(context_, *device_, *world_));
  Connectors connectors;
  COLLC_RETURN_IF_FAILED(connectors_.find_connectors(context_, *device_, world_.get(), &connectors));
  mark_by_address(&connectors);
  COLLC_RETURN_IF_FAILED(memory_.open(world_->plan(), context_.plan_rank(), timeout_ns(), connectors));
  COLLC_RETURN_IF_FAILED(join_halves(context_));
  begin_lending();
  make_balancer(agreed.overrides);
  COLLC_RETURN_IF_FAILED(decide_copies(agreed));
  watched_ = true;
  return watch(this);
}

// Those of ranks in other processes, by the descriptors that they hand out.
Status CudaRank::map_arenas(const Descriptor &mine) {
  std::vector<Descriptor> files;
  COLLC_RETURN_IF_FAILED(exchange_descriptors(context_, mine, &files));
  for (uint32_t r = 0; r < context_.nranks; ++r) {
    const uint32_t peer = context_.placement.plan_rank[r];
    if (files[r] && !world_->plan().pinned.joins(context_.plan_rank(), peer))
      COLLC_RETURN_IF_FAILED(world_->map_arena(peer, device_, files[r].get()));
  }
  return {};
}

uint32_t CudaRank::protocol_of(const Program &program, uint64_t bytes) const {
  if (world_ == nullptr) return program.protocol;
  const Program *first = context_.tables->programs + world_->allocation().first_program;
  return world_->protocol_of(static_cast<uint32_t>(&program - first), bytes);
}

std::vector<ChannelTimes> CudaRank::times() const {
  const Current current(device_->context);
  return memory_.times();
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

bool CudaRank::has_calls() const {
  const Current current(device_->context);
  const Uncaptured uncaptured;
  return launches_.runs();
}

void CudaRank::wait_for_calls_that_end() {
  const Current current(device_->context);
  const Uncaptured uncaptured;
  launches_.wait_for_aborted();
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
  const bool ended = launches_.wait_until_ended(context_.stopped);
  if (watched_) unwatch(this);
  // Nobody carries an abort to the calls of graphs that are launched from now on, so they must not wait.
  if (memory_.has_abort_flag() && launches_.has_graphs()) memory_.abort();
  if (!ended || launches_.has_graphs()) leave_copies();
  copies_ = {};
  // Those that wait for this rank must hear that it goes.
  if (context_.segment != nullptr) context_.segment->leave(context_.rank);
  withdraw_all(this);
  if (loans_ != nullptr) loans_->close(frees_.get());
  defer_frees(ended);
  if (world_ != nullptr) {
    world_->inherit(std::move(frees_), watched_);
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
  if (host_slots_ != nullptr) frees_->drop(std::move(host_slots_));
  launches_.leave(frees_.get(), ended);
}

void CudaRank::look(bool at_peers) {
  look_at_copies();
  if (reported_) return;
  Report report;
  uint32_t channel = 0;
  if (memory_.find_report(&report, &channel)) {
    reported_ = true;
    return end(describe(report, channel));
  }
  if (memory_.is_aborted()) return;
  if (lanes_ != nullptr) lane_looks_.see(lanes_->latest.load(std::memory_order_acquire), launches_.runs(), now_ms());
  if (at_peers) context_.segment->board().see(context_.rank);
  if (at_peers && !context_.segment->aborted()) {
    const Status failed = peers_.look(launches_.runs());
    if (failed.ok())
      look_at_classes();
    else
      end(failed);
  }
  if (context_.stopped() || context_.segment->aborted()) memory_.abort();
}

}  // namespace collc::cuda
