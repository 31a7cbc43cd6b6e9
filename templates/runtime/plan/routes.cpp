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

const char *const kNames[] = {"unknown links", "nvswitch", "nvlink", "xgmi", "c2c", "pcie", "net"};

// A line of the log has no room for more.
constexpr size_t kMostRanks = 32;

std::string machine_name(uint32_t vertex) {
  const char *name = tables().vertex_names;
  for (uint32_t v = 0; v < vertex; ++v) name += std::strlen(name) + 1;
  return name;
}

// A vertex of the plan's graph by its name on this machine, where it is known which GPUs the ranks stand for.
std::string plan_vertex(const Placement &placement, uint32_t vertex) {
  const Tables &all = tables();
  const GpuSet *set = placement.set;
  const uint32_t nranks = placement.allocation->nranks;
  if (set == nullptr && vertex < nranks) return format("rank %u", placement.nccl_rank[vertex]);
  if (set == nullptr) return format("vertex %u", vertex);
  if (vertex >= nranks) return machine_name(all.set_forwarders[set->first_forwarder + vertex - nranks]);
  uint32_t at = set->first;
  while (all.set_ranks[at] != vertex) ++at;
  return machine_name(all.set_gpus[at]);
}

// Such as "gpu0 -nvswitch- nvs0 -nvswitch- gpu1".
std::string path(const Placement &placement, const Route &route) {
  const Tables &all = tables();
  std::string text;
  for (uint32_t i = 0; i < route.nlinks; ++i) {
    const GraphLink &link = all.links[placement.allocation->first_link + all.route_links[route.first + i]];
    if (i == 0) text = plan_vertex(placement, link.src);
    text += format(" -%s- ", name_of(link.kind)) + plan_vertex(placement, link.dst);
  }
  return text;
}

std::string list_some(const std::set<uint32_t> &ranks) {
  std::string text;
  size_t listed = 0;
  for (const uint32_t rank : ranks) {
    if (listed++ == kMostRanks) return text + format(" and %zu more", ranks.size() - kMostRanks);
    text += format(" %u", rank);
  }
  return text;
}

}  // namespace

const char *name_of(LinkClass link) { return kNames[static_cast<uint32_t>(link)]; }

std::string gpu_name(const Placement &placement, uint32_t rank) {
  if (placement.allocation == nullptr || placement.set == nullptr) return {};
  return plan_vertex(placement, placement.plan_rank[rank]);
}

std::vector<RankPath> find_rank_paths(const Placement &placement) {
  std::map<std::pair<uint32_t, uint32_t>, RankPath> ways;
  const Allocation *const allocation = placement.allocation;
  if (allocation == nullptr) return {};
  const Tables &all = tables();
  for (uint32_t f = allocation->first_fifo; f < allocation->first_fifo + allocation->nfifos; ++f) {
    const Fifo &fifo = all.fifos[f];
    for (uint32_t i = fifo.first_reader; i < fifo.first_reader + fifo.nreaders; ++i) {
      const uint32_t from = placement.nccl_rank[fifo.src], to = placement.nccl_rank[all.fifo_readers[i]];
      RankPath &way = ways.insert({{from, to}, RankPath{from, to}}).first->second;
      const Route &route = all.fifo_routes[i];
      double slowest = 0;
      LinkClass link = LinkClass::kNone;
      for (uint32_t l = 0; l < route.nlinks; ++l) {
        const uint32_t number = all.route_links[route.first + l];
        const GraphLink &one = all.links[allocation->first_link + number];
        way.links.push_back(number);
        link = std::max(link, one.kind);
        if (slowest == 0 || one.mbps < slowest * 1e3) slowest = one.mbps / 1e3;
      }
      if (!way.path.empty() && slowest <= way.gbps) continue;
      way.link = link;
      way.gbps = slowest;
      way.path = path(placement, route);
    }
  }
  std::vector<RankPath> found;
  for (auto &[pair, way] : ways) found.push_back(std::move(way));
  return found;
}

void log_routes(const Placement &placement, uint32_t rank) {
  if (placement.allocation == nullptr || !logs(LogLevel::kInfo)) return;
  const Tables &all = tables();
  const uint32_t first = placement.allocation->first_fifo;
  for (uint32_t number = 0; number < std::size(kNames); ++number) {
    const auto link = static_cast<LinkClass>(number);
    std::set<uint32_t> readers;
    uint32_t count = 0;
    for (uint32_t f = 0; f < placement.allocation->nfifos; ++f) {
      const Fifo &fifo = all.fifos[first + f];
      if (fifo.link != link || fifo.src != placement.plan_rank[rank]) continue;
      ++count;
      for (uint32_t i = fifo.first_reader; i < fifo.first_reader + fifo.nreaders; ++i) {
        const uint32_t reader = placement.nccl_rank[all.fifo_readers[i]];
        readers.insert(reader);
        log(LogLevel::kTrace, "FIFO %u from rank %u to rank %u: %s", f, rank, reader,
            path(placement, all.fifo_routes[i]).c_str());
      }
    }
    if (count != 0)
      log(LogLevel::kInfo, "rank %u: %u FIFO%s over %s to rank%s%s", rank, count, count == 1 ? "" : "s", name_of(link),
          readers.size() == 1 ? "" : "s", list_some(readers).c_str());
  }
}

}  // namespace collc
