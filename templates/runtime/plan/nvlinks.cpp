#include "plan/nvlinks.h"

#include <algorithm>

#include "base/log.h"
#include "plan/embedded_tables.h"
#include "plan/place_ranks.h"

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

// Looks for parts of the plan with which every count of links is the same multiple of a speed, and no pair is nearer to each
// other on PCIe than one that is nearer in the plan. What is not known does not count.
class Matcher {
 public:
  Matcher(uint32_t nranks, const NvLinks *links, const PciePaths *paths, const std::vector<uint32_t> &machine,
          const Allocation &allocation, uint64_t *tries)
      : nranks_(nranks),
        links_(links),
        paths_(paths),
        machine_(machine),
        server_(tables().rank_servers + allocation.first_server),
        speeds_(speeds_of(allocation)),
        plan_(allocation),
        tries_(tries) {
    if (!speeds_.any) links_ = nullptr;
    if (!plan_.any()) paths_ = nullptr;
    part_.assign(nranks, 0);
    taken_.assign(nranks, false);
  }

  bool has_links() const { return links_ != nullptr; }
  bool has_paths() const { return paths_ != nullptr; }

  bool fits(const std::vector<uint32_t> &parts) {
    seen_ = {};
    for (uint32_t rank = 0; rank < nranks_; ++rank) {
      part_[rank] = parts[rank];
      if (!fits_before(rank)) return false;
    }
    return true;
  }

  bool search(std::vector<uint32_t> *parts) {
    seen_ = {};
    if (!extend(0)) return false;
    *parts = part_;
    return true;
  }

 private:
  // What the pairs so far have shown.
  struct Seen {
    uint64_t mbps = 0, links_per = 0;  // the first speed that was compared, and how many links it is
    DistanceOrder order;
  };

  // Rounding takes up to half a MB/s of each speed.
  bool same(uint64_t count, uint64_t mbps) {
    if ((count == 0) != (mbps == 0)) return false;
    if (count == 0) return true;
    if (seen_.mbps == 0) {
      seen_.mbps = mbps;
      seen_.links_per = count;
      return true;
    }
    const uint64_t a = mbps * seen_.links_per, b = seen_.mbps * count;
    return (a > b ? a - b : b - a) <= count + seen_.links_per;
  }

  // Whether the part of a rank fits those of the ranks before it.
  bool fits_before(uint32_t rank) {
    const uint32_t part = part_[rank];
    if (links_ != nullptr && !same(links_->into_switch[rank], speeds_.into_switch[part])) return false;
    for (uint32_t other = 0; other < rank; ++other) {
      const uint32_t theirs = part_[other];
      if (!machine_.empty() && (machine_[rank] == machine_[other]) != (server_[part] == server_[theirs])) return false;
      if (links_ != nullptr) {
        const uint64_t count = links_->direct[size_t{rank} * nranks_ + other];
        if (!same(count, speeds_.direct[size_t{part} * nranks_ + theirs])) return false;
        if (!same(count, speeds_.direct[size_t{theirs} * nranks_ + part])) return false;
      }
      if (paths_ != nullptr && !seen_.order.add(plan_.between(part, theirs), paths_->between(rank, other))) return false;
    }
    return true;
  }

  bool extend(uint32_t rank) {
    if (rank == nranks_) return true;
    for (uint32_t part = 0; part < nranks_; ++part) {
      if (taken_[part] || *tries_ == 0) continue;
      --*tries_;
      part_[rank] = part;
      const Seen before = seen_;
      if (fits_before(rank)) {
        taken_[part] = true;
        if (extend(rank + 1)) return true;
        taken_[part] = false;
      }
      seen_ = before;
    }
    return false;
  }

  uint32_t nranks_;
  const NvLinks *links_;
  const PciePaths *paths_;
  const std::vector<uint32_t> &machine_;  // of each rank; empty: one
  const uint32_t *server_;                // of each part
  Speeds speeds_;
  PlanDistances plan_;
  uint64_t *tries_;
  std::vector<uint32_t> part_;  // by rank
  std::vector<bool> taken_;     // by part
  Seen seen_;
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

NvLinks count_links(const std::vector<GpuPlace> &places, const std::vector<uint32_t> &machine) {
  NvLinks found;
  const size_t n = places.size();
  const auto together = [&machine](size_t a, size_t b) { return machine.empty() || machine[a] == machine[b]; };
  for (size_t a = 0; a < n; ++a) {
    if (places[a].has_links == 0 || places[a].bus == 0) return found;
    for (size_t b = 0; b < a; ++b)
      if (places[a].bus == places[b].bus && together(a, b)) return found;
  }
  std::vector<uint32_t> said(n * n, 0);
  found.into_switch.assign(n, 0);
  for (size_t a = 0; a < n; ++a)
    for (uint32_t l = 0; l < std::min(places[a].nlinks, kMaxGpuLinks); ++l) {
      if (places[a].links[l] == kIntoSwitch) ++found.into_switch[a];
      for (size_t b = 0; b < n; ++b)
        if (places[a].links[l] == places[b].bus && together(a, b)) ++said[a * n + b];
    }
  found.direct.assign(n * n, 0);
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b)
      if (a != b) found.direct[a * n + b] = std::min(said[a * n + b], said[b * n + a]);
  found.nranks = static_cast<uint32_t>(n);
  return found;
}

void place_by_bus_ids(const std::vector<GpuPlace> &places, Placement *placement) {
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
  if (!place_ranks(static_cast<uint32_t>(gpus.size()), LiveMachine(), gpus, &other).ok()) return;
  *placement = other;
  log(LogLevel::kInfo, "by their bus ids the ranks are GPUs %s of this library's topology", list.c_str());
}

namespace {

// The first allocation with parts that fit: the one that the ranks have, then the others. False: none, or too many tries.
bool search_all(const NvLinks *links, const PciePaths *paths, uint64_t *tries, Placement *placement, const char *by) {
  const uint32_t nranks = placement->allocation->nranks;
  std::vector<const Allocation *> all = {placement->allocation};
  for (uint32_t a = 0; a < tables().nallocations; ++a)
    if (&tables().allocations[a] != placement->allocation) all.push_back(&tables().allocations[a]);
  for (const Allocation *one : all) {
    if (one->nranks != nranks) continue;
    Matcher matcher(nranks, links, paths, placement->machine, *one, tries);
    std::vector<uint32_t> parts;
    if ((links != nullptr && !matcher.has_links()) || (paths != nullptr && !matcher.has_paths()) || !matcher.search(&parts))
      continue;
    take(*one, parts, placement);
    std::string list;
    for (const uint32_t part : parts) list += (list.empty() ? "" : ",") + std::to_string(part);
    log(LogLevel::kInfo, "by their %s the ranks are the plan's ranks %s", by, list.c_str());
    return true;
  }
  return false;
}

}  // namespace

Status place_by_links(const NvLinks &links, const PciePaths &paths, const std::vector<GpuPlace> &places, Placement *placement) {
  if (placement->allocation == nullptr || places.size() < 2) return {};
  const auto nranks = static_cast<uint32_t>(places.size());
  uint64_t tries = kMostTries;
  const NvLinks *const known = links.nranks == nranks ? &links : nullptr;
  const PciePaths *const told = paths.nranks == nranks ? &paths : nullptr;
  const std::vector<uint32_t> &machine = placement->machine;
  Matcher both(nranks, known, told, machine, *placement->allocation, &tries);
  if (both.fits(placement->plan_rank)) return {};
  const NvLinks *const counted = both.has_links() ? known : nullptr;
  if (both.has_paths() &&
      search_all(counted, told, &tries, placement, counted != nullptr ? "NVLinks and PCIe paths" : "PCIe paths"))
    return {};
  if (both.has_paths()) log(LogLevel::kInfo, "no order of the ranks fits their PCIe paths: these do not count");
  if (counted == nullptr ||
      Matcher(nranks, counted, nullptr, machine, *placement->allocation, &tries).fits(placement->plan_rank))
    return {};
  tries = kMostTries;
  if (search_all(counted, nullptr, &tries, placement, "NVLinks")) return {};
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
