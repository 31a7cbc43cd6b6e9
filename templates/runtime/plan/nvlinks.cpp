#include "plan/nvlinks.h"

#include <algorithm>

#include "base/log.h"
#include "plan/plan.h"

namespace collc {
namespace {

constexpr uint64_t kMostTries = 1000000;  // of giving a rank a part, for all allocations together

// The speeds of an allocation's NVLinks, in MB/s, between the ranks of the plan and from each into switches.
struct Speeds {
  uint32_t nranks = 0;
  bool any = false;
  std::vector<uint64_t> direct, into_switch;
};

Speeds speeds_of(const Allocation &allocation) {
  Speeds found;
  const uint32_t n = found.nranks = allocation.nranks;
  found.direct.assign(size_t{n} * n, 0);
  found.into_switch.assign(n, 0);
  for (uint32_t i = 0; i < allocation.nlinks; ++i) {
    const GraphLink &link = tables().links[allocation.first_link + i];
    if (link.kind != LinkClass::kNvlink && link.kind != LinkClass::kNvswitch) continue;
    found.any = true;
    if (link.src >= n) continue;
    (link.dst < n ? found.direct[size_t{link.src} * n + link.dst] : found.into_switch[link.src]) += link.mbps;
  }
  return found;
}

// Looks for parts of the plan with which every count of links is the same multiple of a speed.
class Matcher {
 public:
  Matcher(const NvLinks &links, const Speeds &speeds, uint64_t *tries) : links_(links), speeds_(speeds), tries_(tries) {
    part_.assign(links.nranks, 0);
    taken_.assign(links.nranks, false);
  }

  bool fits(const std::vector<uint32_t> &parts) {
    for (uint32_t rank = 0; rank < links_.nranks; ++rank) {
      part_[rank] = parts[rank];
      if (!fits_before(rank)) return false;
    }
    return true;
  }

  bool search(std::vector<uint32_t> *parts) {
    mbps_ = links_per_ = 0;
    if (!extend(0)) return false;
    *parts = part_;
    return true;
  }

 private:
  // Rounding takes up to half a MB/s of each speed.
  bool same(uint64_t count, uint64_t mbps) {
    if ((count == 0) != (mbps == 0)) return false;
    if (count == 0) return true;
    if (mbps_ == 0) {
      mbps_ = mbps;
      links_per_ = count;
      return true;
    }
    const uint64_t a = mbps * links_per_, b = mbps_ * count;
    return (a > b ? a - b : b - a) <= count + links_per_;
  }

  // Whether the part of a rank fits those of the ranks before it.
  bool fits_before(uint32_t rank) {
    const uint32_t part = part_[rank], n = links_.nranks;
    if (!same(links_.into_switch[rank], speeds_.into_switch[part])) return false;
    for (uint32_t other = 0; other < rank; ++other) {
      const uint64_t count = links_.direct[size_t{rank} * n + other];
      if (!same(count, speeds_.direct[size_t{part} * n + part_[other]])) return false;
      if (!same(count, speeds_.direct[size_t{part_[other]} * n + part])) return false;
    }
    return true;
  }

  bool extend(uint32_t rank) {
    if (rank == links_.nranks) return true;
    for (uint32_t part = 0; part < links_.nranks; ++part) {
      if (taken_[part] || *tries_ == 0) continue;
      --*tries_;
      part_[rank] = part;
      const uint64_t mbps = mbps_, links_per = links_per_;
      if (fits_before(rank)) {
        taken_[part] = true;
        if (extend(rank + 1)) return true;
        taken_[part] = false;
      }
      mbps_ = mbps;
      links_per_ = links_per;
    }
    return false;
  }

  const NvLinks &links_;
  const Speeds &speeds_;
  uint64_t *tries_;
  std::vector<uint32_t> part_;  // by rank
  std::vector<bool> taken_;     // by part
  uint64_t mbps_ = 0, links_per_ = 0;  // the first speed that was compared, and how many links it is
};

const GpuSet *first_set(const Allocation &allocation) {
  for (uint32_t s = 0; s < tables().ngpu_sets; ++s)
    if (&tables().allocations[tables().gpu_sets[s].allocation] == &allocation) return &tables().gpu_sets[s];
  return nullptr;
}

void take(const Allocation &allocation, const std::vector<uint32_t> &parts, Placement *placement) {
  placement->allocation = &allocation;
  placement->set = first_set(allocation);
  placement->state = 0;
  for (uint32_t s = 0; placement->set != nullptr && s < tables().nstates; ++s) {
    const State &state = tables().states[s];
    const auto number = static_cast<uint32_t>(placement->set - tables().gpu_sets);
    if (number >= state.first_set && number < state.first_set + state.nsets) placement->state = s;
  }
  placement->plan_rank = parts;
  for (uint32_t r = 0; r < parts.size(); ++r) placement->nccl_rank[parts[r]] = r;
}

std::string bus_text(uint64_t bus) {
  return format("%04x:%02x:%02x", static_cast<unsigned>(bus >> 32), static_cast<unsigned>(bus >> 16 & 0xff),
                static_cast<unsigned>(bus >> 8 & 0xff));
}

// Such as "rank 0 (0000:1a:00): 2 to rank 1; rank 1 (0000:1b:00): 6 into switches".
std::string describe(const NvLinks &links, const std::vector<GpuPlace> &places) {
  std::string text;
  for (uint32_t r = 0; r < links.nranks && text.size() < 400; ++r) {
    std::string own;
    if (links.into_switch[r] != 0) own = format(" %u into switches", links.into_switch[r]);
    for (uint32_t other = 0; other < links.nranks; ++other)
      if (const uint32_t count = links.direct[size_t{r} * links.nranks + other]; count != 0)
        own += format("%s %u to rank %u", own.empty() ? "" : ",", count, other);
    text += format("%srank %u (%s):%s", text.empty() ? "" : "; ", r, bus_text(places[r].bus).c_str(),
                   own.empty() ? " none" : own.c_str());
  }
  return text;
}

}  // namespace

uint32_t NvLinks::between(uint32_t a, uint32_t b) const {
  if (nranks == 0) return 0;
  return direct[size_t{a} * nranks + b] + std::min(into_switch[a], into_switch[b]);
}

NvLinks count_links(const std::vector<GpuPlace> &places) {
  NvLinks found;
  const size_t n = places.size();
  for (size_t a = 0; a < n; ++a) {
    if (places[a].known == 0 || places[a].bus == 0) return found;
    for (size_t b = 0; b < a; ++b)
      if (places[a].bus == places[b].bus) return found;
  }
  std::vector<uint32_t> said(n * n, 0);
  found.into_switch.assign(n, 0);
  for (size_t a = 0; a < n; ++a)
    for (uint32_t l = 0; l < std::min(places[a].nlinks, kMostGpuLinks); ++l) {
      if (places[a].links[l] == kIntoSwitch) ++found.into_switch[a];
      for (size_t b = 0; b < n; ++b)
        if (places[a].links[l] == places[b].bus) ++said[a * n + b];
    }
  found.direct.assign(n * n, 0);
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b)
      if (a != b) found.direct[a * n + b] = std::min(said[a * n + b], said[b * n + a]);
  found.nranks = static_cast<uint32_t>(n);
  return found;
}

void place_by_buses(const std::vector<GpuPlace> &places, Placement *placement) {
  const uint64_t *first = tables().gpu_buses, *last = first + tables().nbuses;
  std::vector<uint32_t> gpus;
  std::string list;
  for (const GpuPlace &one : places) {
    const uint64_t *found = one.bus == 0 ? last : std::find(first, last, one.bus);
    const auto gpu = static_cast<uint32_t>(found - first);
    if (found == last || std::find(gpus.begin(), gpus.end(), gpu) != gpus.end()) return;
    gpus.push_back(gpu);
    list += (list.empty() ? "" : ",") + std::to_string(gpu);
  }
  Placement other = *placement;
  if (!place(static_cast<uint32_t>(gpus.size()), FoundMachine(), gpus, &other).ok()) return;
  *placement = other;
  log(LogLevel::kInfo, "by their bus ids the ranks are GPUs %s of this library's topology", list.c_str());
}

Status place_by_links(const NvLinks &links, const std::vector<GpuPlace> &places, Placement *placement) {
  if (links.nranks < 2 || placement->allocation == nullptr) return {};
  uint64_t tries = kMostTries;
  const Speeds first = speeds_of(*placement->allocation);
  if (!first.any || Matcher(links, first, &tries).fits(placement->plan_rank)) return {};
  for (uint32_t a = 0; a < tables().nallocations; ++a) {
    const Allocation &allocation = tables().allocations[a];
    if (allocation.nranks != links.nranks) continue;
    const Speeds speeds = speeds_of(allocation);
    std::vector<uint32_t> parts;
    if (!speeds.any || !Matcher(links, speeds, &tries).search(&parts)) continue;
    take(allocation, parts, placement);
    std::string list;
    for (const uint32_t part : parts) list += (list.empty() ? "" : ",") + std::to_string(part);
    log(LogLevel::kInfo, "by their NVLinks the ranks are the plan's ranks %s", list.c_str());
    return {};
  }
  if (tries == 0) {
    log(LogLevel::kWarn, "no set of GPUs with the NVLinks of these ranks was found in time: the ranks are taken in order");
    return {};
  }
  return fail(
      ncclInvalidUsage,
      "this library was compiled for no %u GPUs with these NVLinks: %s; compile it for this machine (`collc probe`), or "
      "name GPUs of its topology in COLLC_GPUS",
      links.nranks, describe(links, places).c_str());
}

}  // namespace collc
