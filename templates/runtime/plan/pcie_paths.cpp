#include "plan/pcie_paths.h"

#include <algorithm>

#include "plan/embedded_tables.h"

namespace collc {
namespace {

bool uses_pcie(const Allocation &allocation) {
  const Fifo *first = tables().fifos + allocation.first_fifo;
  return std::any_of(first, first + allocation.nfifos, [](const Fifo &fifo) { return fifo.link == LinkClass::kPcie; });
}

bool is_nvlink(LinkClass kind) { return kind == LinkClass::kNvlink || kind == LinkClass::kNvswitch; }

// Returns, by vertex, the number of links from rank `from` over neither NVLinks nor another rank (Bellman-Ford).
std::vector<uint8_t> count_links_from(uint32_t from, const Allocation &allocation, uint32_t nvertices) {
  const GraphLink *const links = tables().links + allocation.first_link;
  std::vector<uint8_t> distance(nvertices, kUnknownPath);
  distance[from] = 0;
  bool has_changed = true;
  for (uint32_t round = 0; round < nvertices && has_changed; ++round) {  // a shortest path has fewer links than vertices
    has_changed = false;
    for (const GraphLink *link = links; link < links + allocation.nlinks; ++link) {
      const bool can_forward = link->src == from || link->src >= allocation.nranks;
      if (is_nvlink(link->kind) || !can_forward || distance[link->src] >= kUnknownPath - 1) continue;
      if (distance[link->src] + 1 >= distance[link->dst]) continue;
      distance[link->dst] = static_cast<uint8_t>(distance[link->src] + 1);
      has_changed = true;
    }
  }
  return distance;
}

}  // namespace

PciePaths merge_paths(uint32_t nranks, const std::vector<uint8_t> &rows) {
  PciePaths paths;
  paths.levels.assign(size_t{nranks} * nranks, 0);
  for (uint32_t a = 0; a < nranks; ++a)
    for (uint32_t b = 0; b < nranks; ++b) {
      if (a == b) continue;
      const uint8_t level = rows[size_t{a} * nranks + b], reverse_level = rows[size_t{b} * nranks + a];
      if (level == kUnknownPath || reverse_level != level) return {};
      paths.levels[size_t{a} * nranks + b] = level;
    }
  paths.nranks = nranks;
  return paths;
}

PlanDistances::PlanDistances(const Allocation &allocation) : nranks_(allocation.nranks) {
  if (!uses_pcie(allocation)) return;
  const GraphLink *const links = tables().links + allocation.first_link;
  uint32_t nvertices = nranks_;
  for (uint32_t l = 0; l < allocation.nlinks; ++l) nvertices = std::max({nvertices, links[l].src + 1, links[l].dst + 1});
  for (uint32_t from = 0; from < nranks_; ++from) {
    const std::vector<uint8_t> distance = count_links_from(from, allocation, nvertices);
    nlinks_.insert(nlinks_.end(), distance.begin(), distance.begin() + nranks_);
  }
}

bool DistanceOrder::add(uint8_t nlinks, uint8_t level) {
  auto range = std::find_if(ranges_.begin(), ranges_.end(), [nlinks](const Range &other) { return other.nlinks == nlinks; });
  if (range == ranges_.end()) range = ranges_.insert(ranges_.end(), {nlinks, level, level});
  range->min_level = std::min(range->min_level, level);
  range->max_level = std::max(range->max_level, level);
  return std::all_of(ranges_.begin(), ranges_.end(), [&range](const Range &other) {
    if (other.nlinks == range->nlinks) return true;
    return other.nlinks < range->nlinks ? other.max_level <= range->min_level : range->max_level <= other.min_level;
  });
}

}  // namespace collc
