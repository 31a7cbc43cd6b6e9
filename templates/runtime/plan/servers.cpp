#include "plan/servers.h"

#include <algorithm>
#include <map>
#include <string>

#include "plan/embedded_tables.h"

namespace collc {
namespace {

// Ranks of the plan by its servers; inside of each in the order of the GPUs.
using Servers = std::vector<std::vector<uint32_t>>;

Servers servers_of(const GpuSet &set) {
  const Tables &all = tables();
  const uint32_t *server = all.rank_servers + all.allocations[set.allocation].first_server;
  std::map<uint32_t, size_t> number;
  Servers found;
  for (uint32_t i = set.first; i < set.first + set.nranks; ++i) {
    const uint32_t plan_rank = all.set_ranks[i];
    const auto [at, is_new] = number.try_emplace(server[plan_rank], found.size());
    if (is_new) found.emplace_back();
    found[at->second].push_back(plan_rank);
  }
  return found;
}

// Gives each machine the first server with as many ranks that none has yet; false if there is none.
bool assign(const std::vector<std::vector<uint32_t>> &machines, const Servers &servers, Placement *placement) {
  std::vector<bool> taken(servers.size());
  std::vector<uint32_t> plan_rank(placement->plan_rank.size());
  for (const std::vector<uint32_t> &ranks : machines) {
    size_t s = 0;
    while (s < servers.size() && (taken[s] || servers[s].size() != ranks.size())) ++s;
    if (s == servers.size()) return false;
    taken[s] = true;
    for (size_t i = 0; i < ranks.size(); ++i) plan_rank[ranks[i]] = servers[s][i];
  }
  placement->plan_rank = plan_rank;
  for (uint32_t r = 0; r < plan_rank.size(); ++r) placement->nccl_rank[plan_rank[r]] = r;
  return true;
}

// Ranks that stand for GPUs of one server, but are on different machines.
bool find_torn(const Placement &placement, uint32_t *one, uint32_t *other) {
  const uint32_t *server = tables().rank_servers + placement.allocation->first_server;
  std::map<uint32_t, uint32_t> first;
  for (uint32_t r = 0; r < placement.machine.size(); ++r) {
    const auto [at, is_new] = first.try_emplace(server[placement.plan_rank[r]], r);
    if (is_new || placement.machine[at->second] == placement.machine[r]) continue;
    *one = at->second;
    *other = r;
    return true;
  }
  return false;
}

bool has_servers(const Allocation &allocation) {
  const uint32_t *server = tables().rank_servers + allocation.first_server;
  return std::any_of(server, server + allocation.nranks, [server](uint32_t one) { return one != server[0]; });
}

std::string describe(const std::vector<std::vector<uint32_t>> &machines) {
  std::string text;
  for (const std::vector<uint32_t> &ranks : machines) text += (text.empty() ? "" : " + ") + std::to_string(ranks.size());
  return text;
}

}  // namespace

bool spans_servers() {
  static const bool some = std::any_of(tables().allocations, tables().allocations + tables().nallocations, has_servers);
  return some;
}

Status place_on_machines(const std::vector<uint64_t> &machines, bool declared, uint32_t rank, Placement *placement) {
  std::map<uint64_t, uint32_t> number;
  std::vector<std::vector<uint32_t>> ranks;
  placement->machine.clear();
  for (uint32_t r = 0; r < machines.size(); ++r) {
    const auto [at, is_new] = number.try_emplace(machines[r], static_cast<uint32_t>(ranks.size()));
    if (is_new) ranks.emplace_back();
    ranks[at->second].push_back(r);
    placement->machine.push_back(at->second);
  }
  placement->local_machine = placement->machine[rank];
  if (ranks.size() == 1) {
    placement->machine.clear();
    return {};
  }
  const uint32_t stranger = ranks[1][0];
  if (placement->allocation == nullptr || !spans_servers())
    return fail(ncclInvalidUsage, "ranks 0 and %u are on different machines; this library serves one machine", stranger);
  const Tables &all = tables();
  const uint32_t begin = all.nstates == 0 ? 0 : all.states[placement->state].first_set;
  const uint32_t end = all.nstates == 0 ? all.ngpu_sets : begin + all.states[placement->state].nsets;
  for (uint32_t s = begin; !declared && s < end; ++s) {
    const GpuSet &set = all.gpu_sets[s];
    if (set.nranks != machines.size() || !assign(ranks, servers_of(set), placement)) continue;
    placement->allocation = &all.allocations[set.allocation];
    placement->set = &set;
    break;
  }
  uint32_t one = 0, other = 0;
  if (!find_torn(*placement, &one, &other)) return {};
  return fail(ncclInvalidUsage,
              "ranks %u and %u are on different machines, but stand for GPUs of one server of this library's topology (the "
              "machines have %s ranks)",
              one, other, describe(ranks).c_str());
}

}  // namespace collc
