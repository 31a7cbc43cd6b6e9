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

}  // namespace

PciePaths merge_paths(uint32_t nranks, const std::vector<uint8_t> &rows) {
  PciePaths found;
  found.steps.assign(size_t{nranks} * nranks, 0);
  for (uint32_t a = 0; a < nranks; ++a)
    for (uint32_t b = 0; b < nranks; ++b) {
      if (a == b) continue;
      const uint8_t one = rows[size_t{a} * nranks + b], other = rows[size_t{b} * nranks + a];
      if (one == kUnknownPath || other != one) return {};
      found.steps[size_t{a} * nranks + b] = one;
    }
  found.nranks = nranks;
  return found;
}

PlanDistances::PlanDistances(const Allocation &allocation) : nranks_(allocation.nranks) {
  if (!uses_pcie(allocation)) return;
  const GraphLink *links = tables().links + allocation.first_link;
  uint32_t nvertices = nranks_;
  for (uint32_t l = 0; l < allocation.nlinks; ++l) nvertices = std::max({nvertices, links[l].src + 1, links[l].dst + 1});
  links_.assign(size_t{nranks_} * nranks_, kUnknownPath);
  for (uint32_t from = 0; from < nranks_; ++from) {
    std::vector<uint8_t> away(nvertices, kUnknownPath);
    away[from] = 0;
    // As often as a way can have links.
    bool changed = true;
    for (uint32_t turn = 0; turn < nvertices && changed; ++turn) {
      changed = false;
      for (uint32_t l = 0; l < allocation.nlinks; ++l) {
        const GraphLink &link = links[l];
        const bool passes = link.src == from || link.src >= nranks_;
        if (is_nvlink(link.kind) || !passes || away[link.src] >= kUnknownPath - 1) continue;
        if (away[link.src] + 1 >= away[link.dst]) continue;
        away[link.dst] = static_cast<uint8_t>(away[link.src] + 1);
        changed = true;
      }
    }
    std::copy(away.begin(), away.begin() + nranks_, links_.begin() + size_t{from} * nranks_);
  }
}

bool DistanceOrder::add(uint8_t links, uint8_t steps) {
  auto found = std::find_if(ranges_.begin(), ranges_.end(), [links](const Range &one) { return one.links == links; });
  if (found == ranges_.end()) found = ranges_.insert(ranges_.end(), {links, steps, steps});
  found->nearest = std::min(found->nearest, steps);
  found->farthest = std::max(found->farthest, steps);
  const Range mine = *found;
  return std::all_of(ranges_.begin(), ranges_.end(), [&mine](const Range &one) {
    return one.links == mine.links || (one.links < mine.links ? one.farthest <= mine.nearest : mine.farthest <= one.nearest);
  });
}

}  // namespace collc
