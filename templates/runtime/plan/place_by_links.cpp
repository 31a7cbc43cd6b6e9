#include "plan/place_by_links.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "plan/embedded_tables.h"
#include "plan/place_ranks.h"

namespace collc {
namespace {

// Attempts to give one NCCL rank a plan rank, over all allocations. Ends a search that would hold up creation.
constexpr uint64_t kMaxAttempts = 1000000;

// The NVLink speeds of an allocation's graph, in MB/s.
struct PlanSpeeds {
  bool has_nvlinks = false;
  std::vector<uint64_t> direct;       // [plan rank * ranks + other]
  std::vector<uint64_t> into_switch;  // by plan rank
};

PlanSpeeds plan_speeds(const Allocation &allocation) {
  PlanSpeeds speeds;
  const uint32_t n = allocation.nranks;
  speeds.direct.assign(size_t{n} * n, 0);
  speeds.into_switch.assign(n, 0);
  for (uint32_t i = 0; i < allocation.nlinks; ++i) {
    const GraphLink &link = tables().links[allocation.first_link + i];
    if (link.kind != LinkClass::kNvlink && link.kind != LinkClass::kNvswitch) continue;
    speeds.has_nvlinks = true;
    if (link.src >= n) continue;  // from a forwarder
    (link.dst < n ? speeds.direct[size_t{link.src} * n + link.dst] : speeds.into_switch[link.src]) += link.mbps;
  }
  return speeds;
}

// Facts about the ranks that a search uses. A null member does not count.
struct RankFacts {
  const NvLinks *links;
  const PciePaths *paths;
  const std::vector<uint32_t> &machine;  // Placement::machine
};

// Searches an assignment of NCCL ranks to the plan ranks of one allocation. It must satisfy three conditions:
// - All numbers of NVLinks have the same ratio to the speeds in the plan.
// - No pair of GPUs is closer on PCIe than a pair that is closer in the plan.
// - If the ranks are on several machines: two ranks are on one machine if and only if their plan ranks are on one server.
class RankMatcher {
 public:
  // `attempts` is reduced by each attempt; at 0 the search ends. All references must outlive the matcher.
  RankMatcher(const RankFacts &facts, const Allocation &allocation, uint64_t *attempts)
      : nranks_(allocation.nranks),
        facts_(facts),
        servers_(tables().rank_servers + allocation.first_server),
        speeds_(plan_speeds(allocation)),
        distances_(allocation),
        attempts_(attempts),
        plan_rank_(nranks_, 0),
        is_taken_(nranks_, false) {
    if (!speeds_.has_nvlinks) facts_.links = nullptr;
    if (distances_.is_empty()) facts_.paths = nullptr;
  }

  // Return whether links or paths count for this allocation.
  bool has_links() const { return facts_.links != nullptr; }
  bool has_paths() const { return facts_.paths != nullptr; }

  // Returns whether an assignment satisfies the conditions.
  bool fits(const std::vector<uint32_t> &plan_rank) {
    comparison_ = {};
    for (uint32_t rank = 0; rank < nranks_; ++rank) {
      plan_rank_[rank] = plan_rank[rank];
      if (!fits_earlier_ranks(rank)) return false;
    }
    return true;
  }

  // Searches an assignment. Returns false if there is none, or if no attempts are left.
  bool search(std::vector<uint32_t> *plan_rank) {
    comparison_ = {};
    if (!assign_from(0)) return false;
    *plan_rank = plan_rank_;
    return true;
  }

 private:
  // The constraints that the pairs of ranks so far determine.
  struct Comparison {
    uint64_t mbps = 0, nlinks = 0;  // the first speed that was compared, and its number of links; 0: none yet
    DistanceOrder order;
  };

  // Returns whether a number of links has the same ratio to its speed as the pairs before. The tables round speeds to MB/s, so
  // the products may differ a little.
  bool has_same_ratio(uint64_t nlinks, uint64_t mbps) {
    if ((nlinks == 0) != (mbps == 0)) return false;
    if (nlinks == 0) return true;
    if (comparison_.mbps == 0) {
      comparison_.mbps = mbps;
      comparison_.nlinks = nlinks;
      return true;
    }
    const uint64_t a = mbps * comparison_.nlinks, b = comparison_.mbps * nlinks;
    return (a > b ? a - b : b - a) <= nlinks + comparison_.nlinks;
  }

  // Returns whether the plan rank of `rank` fits the plan ranks of all ranks before it.
  bool fits_earlier_ranks(uint32_t rank) {
    const uint32_t plan_rank = plan_rank_[rank];
    const NvLinks *const links = facts_.links;
    if (links != nullptr && !has_same_ratio(links->into_switch[rank], speeds_.into_switch[plan_rank])) return false;
    for (uint32_t other = 0; other < rank; ++other) {
      const uint32_t other_plan_rank = plan_rank_[other];
      const bool share_machine = facts_.machine.empty() || facts_.machine[rank] == facts_.machine[other];
      const bool share_server = servers_[plan_rank] == servers_[other_plan_rank];
      if (!facts_.machine.empty() && share_machine != share_server) return false;
      if (links != nullptr) {
        const uint64_t nlinks = links->direct[size_t{rank} * nranks_ + other];
        if (!has_same_ratio(nlinks, speeds_.direct[size_t{plan_rank} * nranks_ + other_plan_rank])) return false;
        if (!has_same_ratio(nlinks, speeds_.direct[size_t{other_plan_rank} * nranks_ + plan_rank])) return false;
      }
      if (facts_.paths == nullptr) continue;
      if (!comparison_.order.add(distances_.between(plan_rank, other_plan_rank), facts_.paths->between(rank, other)))
        return false;
    }
    return true;
  }

  // Assigns `rank` and all ranks after it, by backtracking.
  bool assign_from(uint32_t rank) {
    if (rank == nranks_) return true;
    for (uint32_t plan_rank = 0; plan_rank < nranks_; ++plan_rank) {
      if (is_taken_[plan_rank] || *attempts_ == 0) continue;
      --*attempts_;
      plan_rank_[rank] = plan_rank;
      const Comparison previous = comparison_;
      if (fits_earlier_ranks(rank)) {
        is_taken_[plan_rank] = true;
        if (assign_from(rank + 1)) return true;
        is_taken_[plan_rank] = false;
      }
      comparison_ = previous;
    }
    return false;
  }

  const uint32_t nranks_;
  RankFacts facts_;
  const uint32_t *const servers_;  // by plan rank
  const PlanSpeeds speeds_;
  const PlanDistances distances_;
  uint64_t *const attempts_;
  std::vector<uint32_t> plan_rank_;  // by NCCL rank
  std::vector<bool> is_taken_;       // by plan rank
  Comparison comparison_;
};

// Returns the first set of GPUs that runs the allocation; null if the tables list none.
const GpuSet *first_set(const Allocation &allocation) {
  for (uint32_t s = 0; s < tables().ngpu_sets; ++s)
    if (&tables().allocations[tables().gpu_sets[s].allocation] == &allocation) return &tables().gpu_sets[s];
  return nullptr;
}

// Sets the placement to an assignment, with the first set of the allocation and the state of the machine that has this set.
void apply(const Allocation &allocation, const std::vector<uint32_t> &plan_rank, Placement *placement) {
  placement->allocation = &allocation;
  placement->set = first_set(allocation);
  placement->state = 0;
  for (uint32_t s = 0; placement->set != nullptr && s < tables().nstates; ++s) {
    const State &state = tables().states[s];
    const auto set = static_cast<uint32_t>(placement->set - tables().gpu_sets);
    if (set >= state.first_set && set < state.first_set + state.nsets) placement->state = s;
  }
  placement->plan_rank = plan_rank;
  for (uint32_t r = 0; r < plan_rank.size(); ++r) placement->nccl_rank[plan_rank[r]] = r;
}

// Searches the allocation of the placement first, then the others of this size, and applies the first assignment that fits.
// Returns false if there is none, or if no attempts are left. Skips allocations for which the links or paths of `facts` do not
// count. `criterion` is for the log.
bool search_allocations(const RankFacts &facts, uint64_t *attempts, const char *criterion, Placement *placement) {
  std::vector<const Allocation *> allocations = {placement->allocation};
  for (uint32_t a = 0; a < tables().nallocations; ++a)
    if (&tables().allocations[a] != placement->allocation) allocations.push_back(&tables().allocations[a]);
  const uint32_t nranks = placement->allocation->nranks;
  for (const Allocation *allocation : allocations) {
    if (allocation->nranks != nranks) continue;
    RankMatcher matcher(facts, *allocation, attempts);
    if (facts.links != nullptr && !matcher.has_links()) continue;
    if (facts.paths != nullptr && !matcher.has_paths()) continue;
    std::vector<uint32_t> plan_rank;
    if (!matcher.search(&plan_rank)) continue;
    apply(*allocation, plan_rank, placement);
    log(LogLevel::kInfo, "by their %s the ranks are the plan's ranks %s", criterion, join_numbers(plan_rank).c_str());
    return true;
  }
  return false;
}

}  // namespace

void place_by_bus_ids(const std::vector<GpuPlace> &places, Placement *placement) {
  const uint64_t *const begin = tables().gpu_buses, *const end = begin + tables().nbuses;
  std::vector<uint32_t> gpus;
  for (const GpuPlace &place : places) {
    const uint64_t *const match = place.bus == 0 ? end : std::find(begin, end, place.bus);
    const auto gpu = static_cast<uint32_t>(match - begin);
    if (match == end || std::find(gpus.begin(), gpus.end(), gpu) != gpus.end()) return;
    gpus.push_back(gpu);
  }
  Placement result = *placement;
  if (!place_ranks(static_cast<uint32_t>(gpus.size()), LiveMachine(), gpus, &result).ok()) return;
  *placement = result;
  log(LogLevel::kInfo, "by their bus ids the ranks are GPUs %s of this library's topology", join_numbers(gpus).c_str());
}

Status place_by_links(const NvLinks &links, const PciePaths &paths, const std::vector<GpuPlace> &places, Placement *placement) {
  if (placement->allocation == nullptr || places.size() < 2) return {};
  const auto nranks = static_cast<uint32_t>(places.size());
  const Allocation &allocation = *placement->allocation;
  uint64_t attempts = kMaxAttempts;
  RankFacts facts{links.nranks == nranks ? &links : nullptr, paths.nranks == nranks ? &paths : nullptr, placement->machine};
  RankMatcher matcher(facts, allocation, &attempts);
  if (matcher.fits(placement->plan_rank)) return {};
  if (!matcher.has_links()) facts.links = nullptr;
  if (matcher.has_paths()) {
    const char *const criterion = facts.links != nullptr ? "NVLinks and PCIe paths" : "PCIe paths";
    if (search_allocations(facts, &attempts, criterion, placement)) return {};
    log(LogLevel::kInfo, "no order of the ranks was found that fits their PCIe paths: these do not count");
  }
  facts.paths = nullptr;
  if (facts.links == nullptr || RankMatcher(facts, allocation, &attempts).fits(placement->plan_rank)) return {};
  attempts = kMaxAttempts;
  if (search_allocations(facts, &attempts, "NVLinks", placement)) return {};
  if (attempts == 0) {
    log(LogLevel::kWarn, "no set of GPUs with the NVLinks of these ranks was found in time: the ranks are taken in order");
    return {};
  }
  return fail(
      ncclInvalidUsage,
      "this library was compiled for no %u GPUs with these NVLinks: %s; compile it for this machine (`collc probe`), or "
      "name GPUs of its topology in COLLC_GPUS",
      links.nranks, describe_links(links, places).c_str());
}

}  // namespace collc
