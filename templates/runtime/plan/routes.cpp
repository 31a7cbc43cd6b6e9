#include "plan/routes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "plan/embedded_tables.h"

namespace collc {
namespace {

const char *const kLinkNames[] = {"unknown links", "nvswitch", "nvlink", "xgmi", "c2c", "pcie", "net"};  // by LinkClass

constexpr size_t kMaxListedRanks = 32;  // in a line of the log, whose length is limited

std::string vertex_name(uint32_t machine_vertex) {
  const char *name = tables().vertex_names;
  for (uint32_t v = 0; v < machine_vertex; ++v) name += std::strlen(name) + 1;
  return name;
}

// Returns the topology's name of a vertex of the plan's graph; "rank 3" or "vertex 9" if the ranks' GPUs are unknown.
std::string plan_vertex_name(const Placement &placement, uint32_t plan_vertex) {
  const Tables &all = tables();
  const GpuSet *set = placement.set;
  const uint32_t nranks = placement.allocation->nranks;
  if (set == nullptr && plan_vertex < nranks) return format("rank %u", placement.nccl_rank[plan_vertex]);
  if (set == nullptr) return format("vertex %u", plan_vertex);
  if (plan_vertex >= nranks) return vertex_name(all.set_forwarders[set->first_forwarder + plan_vertex - nranks]);
  uint32_t member = set->first;
  while (all.set_ranks[member] != plan_vertex) ++member;
  return vertex_name(all.set_gpus[member]);
}

const GraphLink &link_of(const Placement &placement, const Route &route, uint32_t index) {
  return tables().links[placement.allocation->first_link + tables().route_links[route.first + index]];
}

// Returns text such as "gpu0 -nvswitch- nvs0 -nvswitch- gpu1"; empty for a route without links.
std::string describe_route(const Placement &placement, const Route &route) {
  std::string text;
  for (uint32_t i = 0; i < route.nlinks; ++i) {
    const GraphLink &link = link_of(placement, route, i);
    if (i == 0) text = plan_vertex_name(placement, link.src);
    text += format(" -%s- ", name_of(link.kind)) + plan_vertex_name(placement, link.dst);
  }
  return text;
}

// Returns text such as " 1 2 5", with the number of ranks beyond kMaxListedRanks.
std::string list_some_ranks(const std::set<uint32_t> &ranks) {
  std::string text;
  size_t listed = 0;
  for (const uint32_t rank : ranks) {
    if (listed++ == kMaxListedRanks) return text + format(" and %zu more", ranks.size() - kMaxListedRanks);
    text += format(" %u", rank);
  }
  return text;
}

// Adds a route: its links always, and its other properties if its slowest link is faster than the slowest link of each route
// before it.
void add_route(const Placement &placement, const Route &route, RankPath *path) {
  double gbps = 0;
  LinkClass slowest_class = LinkClass::kNone;
  for (uint32_t i = 0; i < route.nlinks; ++i) {
    const GraphLink &link = link_of(placement, route, i);
    path->links.push_back(tables().route_links[route.first + i]);
    slowest_class = std::max(slowest_class, link.kind);
    if (gbps == 0 || link.mbps < gbps * 1e3) gbps = link.mbps / 1e3;
  }
  if (!path->path.empty() && gbps <= path->gbps) return;
  path->link = slowest_class;
  path->gbps = gbps;
  path->path = describe_route(placement, route);
}

}  // namespace

const char *name_of(LinkClass link) { return kLinkNames[static_cast<uint32_t>(link)]; }

std::string gpu_name(const Placement &placement, uint32_t rank) {
  if (placement.allocation == nullptr || placement.set == nullptr) return {};
  return plan_vertex_name(placement, placement.plan_rank[rank]);
}

std::vector<RankPath> find_rank_paths(const Placement &placement) {
  const Allocation *const allocation = placement.allocation;
  if (allocation == nullptr) return {};
  const Tables &all = tables();
  std::map<std::pair<uint32_t, uint32_t>, RankPath> by_pair;
  for (uint32_t f = allocation->first_fifo; f < allocation->first_fifo + allocation->nfifos; ++f) {
    const Fifo &fifo = all.fifos[f];
    for (uint32_t i = fifo.first_reader; i < fifo.first_reader + fifo.nreaders; ++i) {
      const uint32_t from = placement.nccl_rank[fifo.src], to = placement.nccl_rank[all.fifo_readers[i]];
      add_route(placement, all.fifo_routes[i], &by_pair.insert({{from, to}, RankPath{from, to}}).first->second);
    }
  }
  std::vector<RankPath> paths;
  for (auto &[pair, path] : by_pair) paths.push_back(std::move(path));
  return paths;
}

void log_routes(const Placement &placement, uint32_t rank) {
  if (placement.allocation == nullptr || !logs(LogLevel::kInfo)) return;
  const Tables &all = tables();
  const uint32_t first = placement.allocation->first_fifo;
  for (uint32_t number = 0; number < std::size(kLinkNames); ++number) {
    const auto link = static_cast<LinkClass>(number);
    std::set<uint32_t> readers;
    uint32_t nfifos = 0;
    for (uint32_t f = 0; f < placement.allocation->nfifos; ++f) {
      const Fifo &fifo = all.fifos[first + f];
      if (fifo.link != link || fifo.src != placement.plan_rank[rank]) continue;
      ++nfifos;
      for (uint32_t i = fifo.first_reader; i < fifo.first_reader + fifo.nreaders; ++i) {
        const uint32_t reader = placement.nccl_rank[all.fifo_readers[i]];
        readers.insert(reader);
        log(LogLevel::kTrace, "FIFO %u from rank %u to rank %u: %s", f, rank, reader,
            describe_route(placement, all.fifo_routes[i]).c_str());
      }
    }
    if (nfifos != 0)
      log(LogLevel::kInfo, "rank %u: %u FIFO%s over %s to rank%s%s", rank, nfifos, nfifos == 1 ? "" : "s", name_of(link),
          readers.size() == 1 ? "" : "s", list_some_ranks(readers).c_str());
  }
}

}  // namespace collc
