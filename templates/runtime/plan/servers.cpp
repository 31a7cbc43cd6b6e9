#include "plan/servers.h"

#include <algorithm>
#include <map>
#include <string>

#include "plan/embedded_tables.h"

namespace collc {
namespace {

// Ranks by machine or server.
using RankGroups = std::vector<std::vector<uint32_t>>;

// Returns the server of each plan rank.
const uint32_t *servers_of(const Allocation &allocation) { return tables().rank_servers + allocation.first_server; }

// Returns the plan ranks of each server, in the order of the set's GPUs; servers are ordered by their first GPU.
RankGroups plan_ranks_by_server(const GpuSet &set) {
  const Tables &all = tables();
  const uint32_t *const servers = servers_of(all.allocations[set.allocation]);
  std::map<uint32_t, size_t> group_of_server;
  RankGroups groups;
  for (uint32_t i = set.first; i < set.first + set.nranks; ++i) {
    const uint32_t plan_rank = all.set_ranks[i];
    const auto [group, is_new] = group_of_server.try_emplace(servers[plan_rank], groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(plan_rank);
  }
  return groups;
}

// Gives each machine the first free server with the same number of ranks. Returns false, and changes nothing, if a machine gets
// none.
bool assign_servers(const RankGroups &machines, const RankGroups &servers, Placement *placement) {
  std::vector<bool> is_taken(servers.size());
  std::vector<uint32_t> plan_rank(placement->plan_rank.size());
  for (const std::vector<uint32_t> &ranks : machines) {
    size_t s = 0;
    while (s < servers.size() && (is_taken[s] || servers[s].size() != ranks.size())) ++s;
    if (s == servers.size()) return false;
    is_taken[s] = true;
    for (size_t i = 0; i < ranks.size(); ++i) plan_rank[ranks[i]] = servers[s][i];
  }
  placement->plan_rank = plan_rank;
  for (uint32_t r = 0; r < plan_rank.size(); ++r) placement->nccl_rank[plan_rank[r]] = r;
  return true;
}

// Fails if two ranks have GPUs of one server but are on different machines.
Status check_servers(const Placement &placement, const RankGroups &machines) {
  const uint32_t *const servers = servers_of(*placement.allocation);
  std::map<uint32_t, uint32_t> first_rank;  // by server
  for (uint32_t rank = 0; rank < placement.machine.size(); ++rank) {
    const auto [first, is_new] = first_rank.try_emplace(servers[placement.plan_rank[rank]], rank);
    if (is_new || placement.machine[first->second] == placement.machine[rank]) continue;
    std::string sizes;
    for (const std::vector<uint32_t> &ranks : machines) sizes += (sizes.empty() ? "" : " + ") + std::to_string(ranks.size());
    return fail(ncclInvalidUsage,
                "ranks %u and %u are on different machines, but stand for GPUs of one server of this library's topology (the "
                "machines have %s ranks)",
                first->second, rank, sizes.c_str());
  }
  return {};
}

bool has_several_servers(const Allocation &allocation) {
  const uint32_t *const servers = servers_of(allocation);
  return std::any_of(servers, servers + allocation.nranks, [servers](uint32_t server) { return server != servers[0]; });
}

// Numbers the machines in the order of NCCL ranks, sets Placement::machine, and returns the NCCL ranks of each machine.
RankGroups number_machines(const std::vector<uint64_t> &machines, Placement *placement) {
  std::map<uint64_t, uint32_t> numbers;
  RankGroups groups;
  placement->machine.clear();
  for (uint32_t rank = 0; rank < machines.size(); ++rank) {
    const auto [number, is_new] = numbers.try_emplace(machines[rank], static_cast<uint32_t>(groups.size()));
    if (is_new) groups.emplace_back();
    groups[number->second].push_back(rank);
    placement->machine.push_back(number->second);
  }
  return groups;
}

}  // namespace

bool spans_servers() {
  const Tables &all = tables();
  static const bool result = std::any_of(all.allocations, all.allocations + all.nallocations, has_several_servers);
  return result;
}

Status place_on_machines(const std::vector<uint64_t> &machines, bool is_declared, uint32_t rank, Placement *placement) {
  const RankGroups ranks = number_machines(machines, placement);
  placement->local_machine = placement->machine[rank];
  if (ranks.size() == 1) {
    placement->machine.clear();
    return {};
  }
  if (placement->allocation == nullptr || !spans_servers())
    return fail(ncclInvalidUsage, "ranks 0 and %u are on different machines; this library serves one machine", ranks[1][0]);
  const Tables &all = tables();
  const State all_sets = {0, all.ngpu_sets, 0, 0};
  const State &state = all.nstates == 0 ? all_sets : all.states[placement->state];
  for (uint32_t s = state.first_set; !is_declared && s < state.first_set + state.nsets; ++s) {
    const GpuSet &set = all.gpu_sets[s];
    if (set.nranks != machines.size() || !assign_servers(ranks, plan_ranks_by_server(set), placement)) continue;
    placement->allocation = &all.allocations[set.allocation];
    placement->set = &set;
    break;
  }
  return check_servers(*placement, ranks);
}

}  // namespace collc
