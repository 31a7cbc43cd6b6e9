#include "cuda/rank.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "cuda/alone.h"
#include "cuda/deferred_frees.h"
#include "cuda/fill.h"
#include "cuda/lending.h"
#include "cuda/rank_tables.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {
namespace {

constexpr size_t kReportsAt = 128;  // in the pinned memory, behind the abort flag

volatile uint32_t &word(char *at) { return *reinterpret_cast<volatile uint32_t *>(at); }

}  // namespace

Status CudaRank::open(const RankContext &context, std::unique_ptr<RankBackend> *made) {
  set_release_hooks({any_kernel_runs, keep_watching});
  const Driver *loaded = nullptr;
  COLLC_RETURN_IF_FAILED(load_driver(&loaded));
  const Uncaptured uncaptured;
  std::unique_ptr<CudaRank> rank(new CudaRank(context));
  COLLC_RETURN_IF_FAILED(current_device(&rank->device_));
  COLLC_RETURN_IF_FAILED(rank->launches_.open(rank->device_, context.orders_launches));
  COLLC_RETURN_IF_FAILED(context.nranks > 1 ? rank->open_memory() : rank->open_alone());
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
  plan_rank_ = context_.placement.plan_rank[context_.rank];
  RankMemory mine;
  Descriptor file;
  COLLC_RETURN_IF_FAILED(world_->add_rank(plan_rank_, device_, &mine, &file));
  listen_for_loans(&mine);
  std::vector<RankMemory> all, memories(context_.nranks);
  COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &all));
  for (uint32_t r = 0; r < context_.nranks; ++r) memories[context_.placement.plan_rank[r]] = all[r];
  COLLC_RETURN_IF_FAILED(world_->set_peers(memories, context_.placement));
  if (agreed.by_descriptor) COLLC_RETURN_IF_FAILED(map_arenas(file));
  COLLC_RETURN_IF_FAILED(join_team());
  COLLC_RETURN_IF_FAILED(launches_.choose_threads(*world_, most_threads_));
  COLLC_RETURN_IF_FAILED(share_pinned());
  std::vector<FifoEnd> ends;
  COLLC_RETURN_IF_FAILED(make_ends(&ends));
  COLLC_RETURN_IF_FAILED(make_state(ends));
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
    if (files[r] && !world_->plan().pinned.joins(plan_rank_, peer))
      COLLC_RETURN_IF_FAILED(world_->map_arena(peer, device_, files[r].get()));
  }
  return {};
}

Status CudaRank::open_alone() {
  launches_.choose_threads_alone();
  return make_alone(&state_);
}

// Calls that several classes share do without the class pcie where it has no memory.
Status CudaRank::share_pinned() {
  COLLC_RETURN_IF_FAILED(PinnedMemory::share(context_, device_->number, world_->plan().pinned, &pinned_memory_, &refused_));
  if (!refused_.empty()) dispose(std::move(pinned_memory_));
  return {};
}

size_t CudaRank::times_at() const { return (kReportsAt + reports() * sizeof(Report) + 127) / 128 * 128; }

uint32_t CudaRank::reports() const { return std::max(world_->plan().max_channels, world_->plan().lanes.lanes); }

Status CudaRank::make_state(const std::vector<FifoEnd> &ends) {
  const Driver &cu = driver();
  const size_t bytes = times_at() + ClassTimes::bytes(world_->plan().max_channels);
  void *pinned = nullptr;
  COLLC_RETURN_IF_FAILED(check(cu.allocate_host(&pinned, bytes, kHostPortableMapped), "allocating pinned memory"));
  pinned_ = static_cast<char *>(pinned);
  std::memset(pinned_, 0, bytes);
  COLLC_RETURN_IF_FAILED(check(cu.host_address(&pinned_at_, pinned, 0), "mapping pinned memory"));
  RankState state = {};
  state.lane_ends = reinterpret_cast<FifoEnd *>(lane_ends_);
  state.nlanes = world_->plan().lanes.lanes;
  state.lane_slots = world_->plan().lanes.slots;
  state.lane_bytes = world_->plan().lanes.bytes;
  state.reports = reinterpret_cast<Report *>(pinned_at_ + kReportsAt);
  state.times = reinterpret_cast<ChannelTime *>(pinned_at_ + times_at());
  state.ntimes = world_->plan().max_channels;
  state.abort_flag = reinterpret_cast<uint32_t *>(pinned_at_);
  state.timeout_ns = timeout_ns();
  state.nranks = context_.nranks;
  if (kernels_count()) {
    const std::vector<ChannelTicks> none(world_->plan().max_channels);
    COLLC_RETURN_IF_FAILED(put_on_device(none.data(), none.size() * sizeof(ChannelTicks), &ticks_));
    state.ticks = reinterpret_cast<ChannelTicks *>(ticks_);
    timed_ = is_set("COLLC_BREAKDOWN");
  }
  const RankTables tables = make_tables(world_->plan(), plan_rank_, state, ends);
  return put_on_device(tables.data(), tables.size() * sizeof(TableUnit), &state_);
}

uint32_t CudaRank::protocol_of(const Program &program, uint64_t bytes) const {
  if (world_ == nullptr) return program.protocol;
  const Program *first = context_.tables->programs + world_->allocation().first_program;
  return world_->protocol_of(static_cast<uint32_t>(&program - first), bytes);
}

std::vector<ChannelTimes> CudaRank::times() const {
  if (!timed_) return {};
  std::vector<ChannelTicks> sums(world_->plan().max_channels);
  const Current current(device_->context);
  if (driver().context_synchronize() != 0 || driver().download(sums.data(), ticks_, sums.size() * sizeof sums[0]) != 0)
    return {};
  std::vector<ChannelTimes> times;
  for (const ChannelTicks &one : sums) {
    double all = 0;
    for (const uint64_t spent : one.spent) all += static_cast<double>(spent);
    const double tick = all == 0 ? 0 : static_cast<double>(one.ns) / all;
    const auto ns = [&](Activity what) {
      return static_cast<uint64_t>(static_cast<double>(one.spent[static_cast<uint32_t>(what)]) * tick);
    };
    times.push_back({ns(Activity::kWaiting), ns(Activity::kCopying), ns(Activity::kReducing)});
  }
  return times;
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
  const size_t nends = plan.ends[plan_rank_].size() * kProtocols + size_t{2} * context_.nranks * plan.lanes.lanes;
  return plan.arena_bytes[plan_rank_] + team_.own.bytes + nends * sizeof(FifoEnd) + kTableMessages * sizeof(Message);
}

CudaRank::~CudaRank() {
  if (device_ == nullptr) return;
  const Current current(device_->context);
  const Uncaptured uncaptured;
  // The watcher still carries an abort to kernels that wait.
  const bool ended = launches_.wait_until_ended(context_.stopped);
  if (watched_) unwatch(this);
  // Nobody carries an abort to the calls of graphs that are launched from now on, so they must not wait.
  if (pinned_ != nullptr && launches_.has_graphs()) word(pinned_) = 1;
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
  for (const Address at : {lane_ends_, messages_, state_, ticks_})
    if (at != 0) frees_->free_memory(device_, at);
  for (const VirtualMemory &mapped : {team_.all, team_.own})
    if (mapped.bytes != 0) frees_->unmap(device_, mapped);
  if (pinned_ != nullptr) frees_->free_pinned(device_, pinned_);
  for (auto *const memory : {&pinned_memory_, &host_slots_})
    if (*memory != nullptr) frees_->drop(std::move(*memory));
  launches_.leave(frees_.get(), ended);
}

void CudaRank::look(bool at_peers) {
  look_at_copies();
  if (reported_) return;
  for (uint32_t c = 0; c < reports(); ++c) {
    Report report;
    std::memcpy(&report, pinned_ + kReportsAt + c * sizeof(Report), sizeof report);
    if (report.state != static_cast<uint32_t>(ReportState::kTimedOut) &&
        report.state != static_cast<uint32_t>(ReportState::kDiffers))
      continue;
    reported_ = true;
    return end(describe(report, c));
  }
  if (word(pinned_) != 0) return;
  if (lanes_ != nullptr) lane_looks_.see(lanes_->latest.load(std::memory_order_acquire), launches_.runs(), now_ms());
  if (at_peers) context_.segment->board().see(context_.rank);
  if (at_peers && !context_.segment->aborted()) {
    const Status failed = peers_.look(launches_.runs());
    if (failed.ok())
      look_at_classes();
    else
      end(failed);
  }
  if (context_.stopped() || context_.segment->aborted()) word(pinned_) = 1;
}

}  // namespace collc::cuda
