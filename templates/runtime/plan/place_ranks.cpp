#include "plan/place_ranks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>

#include "base/environment.h"
#include "plan/embedded_tables.h"

namespace collc {
namespace {

// Sets `gpus` to the GPUs that a variable lists by index or name. Each GPU may occur once. `owner` completes the error texts.
Status read_gpus(const char *variable, const std::vector<std::string> &names, const char *owner, std::vector<uint32_t> *gpus) {
  gpus->clear();
  for (const std::string &word : read_list(variable)) {
    const size_t name_index = static_cast<size_t>(std::find(names.begin(), names.end(), word) - names.begin());
    const bool is_number = !word.empty() && word.size() < 9 && word.find_first_not_of("0123456789") == std::string::npos;
    const bool is_index = name_index == names.size() && is_number;
    const auto gpu = static_cast<uint32_t>(is_index ? std::stoul(word) : name_index);
    if (gpu >= names.size())
      return fail(ncclInvalidUsage, "%s: %.60s is no GPU of %s, which has %zu", variable, word.c_str(), owner, names.size());
    if (std::find(gpus->begin(), gpus->end(), gpu) != gpus->end())
      return fail(ncclInvalidUsage, "%s names GPU %.60s twice", variable, word.c_str());
    gpus->push_back(gpu);
  }
  return {};
}

std::vector<std::string> topology_gpu_names() {
  std::vector<std::string> names;
  const char *name = tables().vertex_names;
  for (uint32_t g = 0; g < tables().ngpus; ++g, name += std::strlen(name) + 1) names.emplace_back(name);
  return names;
}

// Returns 0, 1, ..., count - 1.
std::vector<uint32_t> first_numbers(uint32_t count) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

}  // namespace

Status read_declared_gpus(uint32_t nranks, const LiveMachine &machine, std::vector<uint32_t> *gpus) {
  gpus->clear();
  if (!machine.mismatch.empty()) return {};  // place_ranks() reports the mismatch
  constexpr const char *kTopology = "this library's topology";
  std::vector<uint32_t> numbering;
  COLLC_RETURN_IF_FAILED(read_gpus("COLLC_NUMBERING", topology_gpu_names(), kTopology, &numbering));
  if (machine.is_described) {
    if (!numbering.empty()) return fail(ncclInvalidUsage, "COLLC_NUMBERING and COLLC_TOPOLOGY both describe this machine");
    COLLC_RETURN_IF_FAILED(read_gpus("COLLC_GPUS", machine.gpu_names, "the machine of COLLC_TOPOLOGY", gpus));
    numbering = machine.topology_gpus;
  } else {
    COLLC_RETURN_IF_FAILED(read_gpus("COLLC_GPUS", topology_gpu_names(), kTopology, gpus));
  }
  if (numbering.empty()) return {};
  // `numbering` maps GPUs of the live machine to GPUs of the topology. Undeclared ranks use the first GPUs of the live machine.
  if (gpus->empty() && nranks <= numbering.size()) *gpus = first_numbers(nranks);
  for (uint32_t &gpu : *gpus) {
    if (gpu >= numbering.size())
      return fail(ncclInvalidUsage, "COLLC_GPUS names GPU %u, COLLC_NUMBERING has %zu", gpu, numbering.size());
    gpu = numbering[gpu];
  }
  return {};
}

namespace {

// A set of GPUs that is equivalent to another set because GPUs of one class are interchangeable.
struct CanonicalSet {
  std::vector<uint32_t> gpu_of_rank;  // by NCCL rank
  std::vector<uint32_t> gpus;         // the same GPUs, ascending
};

// Replaces the GPUs of each class by the first members of the class, in ascending order of GPUs; the tables list only such
// sets.
CanonicalSet canonical_set(const std::vector<uint32_t> &gpus, const uint32_t *classes) {
  std::vector<uint32_t> ranks = first_numbers(static_cast<uint32_t>(gpus.size()));
  std::sort(ranks.begin(), ranks.end(), [&](uint32_t a, uint32_t b) { return gpus[a] < gpus[b]; });
  CanonicalSet set;
  set.gpu_of_rank.assign(gpus.size(), 0);
  std::vector<uint32_t> search_start(tables().ngpus, 0);  // by class: the GPU after the last member that is in use
  for (const uint32_t rank : ranks) {
    const uint32_t gpu_class = classes[gpus[rank]];
    uint32_t gpu = search_start[gpu_class];
    while (classes[gpu] != gpu_class) ++gpu;
    search_start[gpu_class] = gpu + 1;
    set.gpu_of_rank[rank] = gpu;
  }
  set.gpus = set.gpu_of_rank;
  std::sort(set.gpus.begin(), set.gpus.end());
  return set;
}

// Places rank r on gpus[r] if the library has a plan for these GPUs in the state of the machine; else returns false.
bool place_on_set(const std::vector<uint32_t> &gpus, Placement *placement) {
  const State all_sets = {0, tables().ngpu_sets, 0, 0};
  const State &state = tables().nstates == 0 ? all_sets : tables().states[placement->state];
  const uint32_t *classes = tables().gpu_classes + size_t{placement->state} * tables().ngpus;
  const CanonicalSet canonical = canonical_set(gpus, classes);
  for (uint32_t s = state.first_set; s < state.first_set + state.nsets; ++s) {
    const GpuSet &set = tables().gpu_sets[s];
    const uint32_t *members = tables().set_gpus + set.first;
    if (set.nranks != gpus.size() || !std::equal(canonical.gpus.begin(), canonical.gpus.end(), members)) continue;
    placement->allocation = &tables().allocations[set.allocation];
    placement->set = &set;
    for (uint32_t rank = 0; rank < gpus.size(); ++rank) {
      const auto member = std::lower_bound(members, members + set.nranks, canonical.gpu_of_rank[rank]) - members;
      const uint32_t plan_rank = tables().set_ranks[set.first + static_cast<uint32_t>(member)];
      placement->plan_rank[rank] = plan_rank;
      placement->nccl_rank[plan_rank] = rank;
    }
    return true;
  }
  return false;
}

// Returns the first allocation of `nranks` ranks; null if there is none.
const Allocation *first_allocation(uint32_t nranks) {
  const Allocation *end = tables().allocations + tables().nallocations;
  const auto has_size = [nranks](const Allocation &allocation) { return allocation.nranks == nranks; };
  const Allocation *const first = std::find_if(tables().allocations, end, has_size);
  return first == end ? nullptr : first;
}

Status fail_for_size(uint32_t nranks) {
  std::set<uint32_t> sizes;
  for (uint32_t a = 0; a < tables().nallocations; ++a) sizes.insert(tables().allocations[a].nranks);
  std::string list;
  for (const uint32_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
  return fail(ncclInvalidUsage, "this library was compiled for %s ranks, the communicator has %u", list.c_str(), nranks);
}

Status place_on_first_gpus(uint32_t nranks, const LiveMachine &machine, Placement *placement) {
  const std::vector<uint32_t> &gpus = machine.topology_gpus;
  if (nranks > gpus.size())
    return fail(ncclInvalidUsage, "the machine of COLLC_TOPOLOGY has %zu GPUs, the communicator %u ranks", gpus.size(), nranks);
  if (place_on_set({gpus.begin(), gpus.begin() + nranks}, placement)) return {};
  return fail(ncclInvalidUsage, "this library was compiled without the first %u GPUs of the machine of COLLC_TOPOLOGY", nranks);
}

}  // namespace

Status place_ranks(uint32_t nranks, const LiveMachine &machine, const std::vector<uint32_t> &gpus, Placement *placement) {
  placement->allocation = nullptr;
  placement->set = nullptr;
  placement->state = machine.state;
  placement->plan_rank = placement->nccl_rank = first_numbers(nranks);
  if (nranks == 1) return {};
  if (!machine.mismatch.empty()) return fail(ncclInvalidUsage, "%s", machine.mismatch.c_str());
  if (!machine.is_described && serves_several_machines())
    return fail(ncclInvalidUsage,
                "this library is for several kinds of servers: start the program by `collc run`, or set COLLC_TOPOLOGY");
  const Allocation *const fallback = first_allocation(nranks);
  if (fallback == nullptr) return fail_for_size(nranks);
  if (gpus.size() == nranks) {
    if (place_on_set(gpus, placement)) return {};
    return fail(ncclInvalidUsage, "this library was compiled without the GPUs %s", join_numbers(gpus).c_str());
  }
  if (machine.is_described) return place_on_first_gpus(nranks, machine, placement);
  // The ranks' GPUs are unknown. They take the first GPUs if the library has several allocations and one of them serves these
  // GPUs; otherwise they take the first allocation of this size with plan ranks equal to NCCL ranks.
  if (tables().nallocations > 1 && nranks <= tables().ngpus && place_on_set(first_numbers(nranks), placement)) return {};
  placement->allocation = fallback;
  if (tables().ngpu_sets == 1) placement->set = tables().gpu_sets;
  return {};
}

Status check_gpu_count(uint32_t nranks, const std::vector<uint32_t> &gpus) {
  if (gpus.empty() || gpus.size() >= nranks) return {};
  return fail(ncclInvalidUsage,
              "COLLC_GPUS names %zu GPU%s for a communicator of %u ranks: name one for each, in the ranks' order", gpus.size(),
              gpus.size() == 1 ? "" : "s", nranks);
}

}  // namespace collc
