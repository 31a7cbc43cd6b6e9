#include "plan/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>

#include "base/environment.h"

extern "C" {
extern const unsigned char collc_own_tables[] __attribute__((visibility("hidden")));  // a TablesHeader and its arrays
extern const uint64_t collc_own_tables_size __attribute__((visibility("hidden")));
extern const char collc_manifest[];
extern const uint64_t collc_manifest_size;
}

namespace collc {

namespace {

const TablesHeader &header() { return *reinterpret_cast<const TablesHeader *>(collc_own_tables); }

template <class T>
const T *array(const Extent &extent) {
  return reinterpret_cast<const T *>(collc_own_tables + extent.at);
}

Tables find_tables() {
  const TablesHeader &all = header();
  return {array<Allocation>(all.allocations),
          array<Program>(all.programs),
          array<Share>(all.shares),
          array<RankChannel>(all.rank_channels),
          array<Step>(all.steps),
          array<FifoRef>(all.refs),
          array<Fifo>(all.fifos),
          array<uint32_t>(all.fifo_readers),
          array<Route>(all.fifo_routes),
          array<uint32_t>(all.route_links),
          array<GraphLink>(all.links),
          array<uint32_t>(all.rank_servers),
          array<GpuSet>(all.gpu_sets),
          array<uint32_t>(all.set_gpus),
          array<uint32_t>(all.set_ranks),
          array<uint32_t>(all.set_forwarders),
          array<uint32_t>(all.gpu_classes),
          array<char>(all.vertex_names),
          array<uint32_t>(all.machine_vertices),
          array<MachineLink>(all.machine_links),
          array<State>(all.states),
          array<Change>(all.changes),
          array<uint64_t>(all.gpu_buses),
          array<Card>(all.cards),
          all.allocations.count,
          all.gpu_sets.count,
          all.gpu_classes.count / std::max(all.states.count, 1u),
          all.machine_vertices.count,
          all.machine_links.count,
          all.states.count,
          all.gpu_buses.count,
          all.cards.count};
}

// As `digest` of collc.checker.layout: every step is a bijection, so that no change of one word goes unseen.
uint64_t table_digest() {
  uint64_t value = 0xcbf29ce484222325;
  for (uint64_t at = offsetof(TablesHeader, bytes); at < collc_own_tables_size; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, collc_own_tables + at, sizeof word);
    value = (value ^ word) * 0x9e3779b97f4a7c15;
    value = value >> 35 | value << 29;
  }
  return value;
}

}  // namespace

const Tables &tables() {
  static const Tables found = find_tables();
  return found;
}

Status check_tables() {
  static const bool right = header().bytes == collc_own_tables_size && table_digest() == header().digest;
  if (right) return {};
  return fail(ncclInternalError,
              "the tables of this library are damaged: compile it again (`collc verify` says what is wrong)");
}

uint64_t build_fingerprint() {
  // FNV-1a of the manifest, which holds the build id.
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t i = 0; i < collc_manifest_size; ++i)
    hash = (hash ^ static_cast<unsigned char>(collc_manifest[i])) * 0x100000001b3;
  return hash;
}

namespace {

// The GPUs that a variable lists, by index or name, each once.
Status read_gpus(const char *variable, const std::vector<std::string> &names, const char *whose, std::vector<uint32_t> *gpus) {
  gpus->clear();
  for (const std::string &word : read_list(variable)) {
    const size_t named = static_cast<size_t>(std::find(names.begin(), names.end(), word) - names.begin());
    const bool digits = !word.empty() && word.size() < 9 && word.find_first_not_of("0123456789") == std::string::npos;
    const uint32_t number = static_cast<uint32_t>(named == names.size() && digits ? std::stoul(word) : named);
    if (number >= names.size())
      return fail(ncclInvalidUsage, "%s: %.60s is no GPU of %s, which has %zu", variable, word.c_str(), whose, names.size());
    if (std::find(gpus->begin(), gpus->end(), number) != gpus->end())
      return fail(ncclInvalidUsage, "%s names GPU %.60s twice", variable, word.c_str());
    gpus->push_back(number);
  }
  return {};
}

std::vector<std::string> own_names() {
  std::vector<std::string> names;
  const char *name = tables().vertex_names;
  for (uint32_t g = 0; g < tables().ngpus; ++g, name += std::strlen(name) + 1) names.emplace_back(name);
  return names;
}

}  // namespace

Status declared_gpus(uint32_t nranks, const FoundMachine &found, std::vector<uint32_t> *gpus) {
  gpus->clear();
  if (!found.misfit.empty()) return {};  // place() refuses it
  constexpr const char *kOwn = "this library's topology";
  std::vector<uint32_t> numbering;
  COLLC_RETURN_IF_FAILED(read_gpus("COLLC_NUMBERING", own_names(), kOwn, &numbering));
  if (found.given) {
    if (!numbering.empty()) return fail(ncclInvalidUsage, "COLLC_NUMBERING and COLLC_TOPOLOGY both describe this machine");
    COLLC_RETURN_IF_FAILED(read_gpus("COLLC_GPUS", found.gpus, "the machine of COLLC_TOPOLOGY", gpus));
    numbering = found.stands;
  } else {
    COLLC_RETURN_IF_FAILED(read_gpus("COLLC_GPUS", own_names(), kOwn, gpus));
  }
  if (numbering.empty()) return {};
  // The live machine numbers its GPUs in its own way; undeclared ranks stand for its first ones.
  if (gpus->empty() && nranks <= numbering.size())
    for (uint32_t r = 0; r < nranks; ++r) gpus->push_back(r);
  for (uint32_t &gpu : *gpus) {
    if (gpu >= numbering.size())
      return fail(ncclInvalidUsage, "COLLC_GPUS names GPU %u, COLLC_NUMBERING has %zu", gpu, numbering.size());
    gpu = numbering[gpu];
  }
  return {};
}

namespace {

// The set that takes the first members of each class of GPUs instead, and which of its GPUs each rank then stands for.
std::vector<uint32_t> foremost(const std::vector<uint32_t> &gpus, const uint32_t *classes, std::vector<uint32_t> *by_rank) {
  std::vector<uint32_t> order(gpus.size());
  for (uint32_t r = 0; r < order.size(); ++r) order[r] = r;
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return gpus[a] < gpus[b]; });
  by_rank->assign(gpus.size(), 0);
  std::vector<uint32_t> next(tables().ngpus, 0);  // by class: where to go on looking for a member
  for (const uint32_t r : order) {
    const uint32_t wanted = classes[gpus[r]];
    uint32_t g = next[wanted];
    while (classes[g] != wanted) ++g;
    next[wanted] = g + 1;
    (*by_rank)[r] = g;
  }
  std::vector<uint32_t> set = *by_rank;
  std::sort(set.begin(), set.end());
  return set;
}

// Looks the GPUs up among the sets that were compiled for the machine's state.
bool find_set(const std::vector<uint32_t> &gpus, Placement *placement) {
  std::vector<uint32_t> by_rank;
  const State all = {0, tables().ngpu_sets, 0, 0};
  const State &state = tables().nstates == 0 ? all : tables().states[placement->state];
  const uint32_t *classes = tables().gpu_classes + size_t{placement->state} * tables().ngpus;
  const std::vector<uint32_t> set = foremost(gpus, classes, &by_rank);
  for (uint32_t s = state.first_set; s < state.first_set + state.nsets; ++s) {
    const GpuSet &candidate = tables().gpu_sets[s];
    const uint32_t *members = tables().set_gpus + candidate.first;
    if (candidate.nranks != set.size() || !std::equal(set.begin(), set.end(), members)) continue;
    placement->allocation = &tables().allocations[candidate.allocation];
    placement->set = &candidate;
    for (uint32_t r = 0; r < gpus.size(); ++r) {
      const auto at = std::lower_bound(set.begin(), set.end(), by_rank[r]) - set.begin();
      placement->plan_rank[r] = tables().set_ranks[candidate.first + static_cast<uint32_t>(at)];
    }
    for (uint32_t r = 0; r < gpus.size(); ++r) placement->nccl_rank[placement->plan_rank[r]] = r;
    return true;
  }
  return false;
}

}  // namespace

bool for_several_kinds() { return tables().nstates > 1 && tables().states[0].nsets == 0; }

Status place(uint32_t nranks, const FoundMachine &found, const std::vector<uint32_t> &gpus, Placement *placement) {
  placement->allocation = nullptr;
  placement->set = nullptr;
  placement->state = found.state;
  placement->plan_rank.resize(nranks);
  placement->nccl_rank.resize(nranks);
  for (uint32_t r = 0; r < nranks; ++r) placement->plan_rank[r] = placement->nccl_rank[r] = r;
  if (nranks == 1) return {};
  if (!found.misfit.empty()) return fail(ncclInvalidUsage, "%s", found.misfit.c_str());
  if (!found.given && for_several_kinds())
    return fail(ncclInvalidUsage,
                "this library is for several kinds of servers: start the program by `collc run`, or set COLLC_TOPOLOGY");
  std::set<uint32_t> served;
  const Allocation *any = nullptr;
  for (uint32_t a = 0; a < tables().nallocations; ++a) {
    const Allocation &allocation = tables().allocations[a];
    served.insert(allocation.nranks);
    if (allocation.nranks == nranks && any == nullptr) any = &allocation;
  }
  if (any == nullptr) {
    std::string list;
    for (const uint32_t n : served) list += (list.empty() ? "" : ", ") + std::to_string(n);
    return fail(ncclInvalidUsage, "this library was compiled for %s ranks, the communicator has %u", list.c_str(), nranks);
  }
  if (gpus.size() == nranks) {
    if (find_set(gpus, placement)) return {};
    std::string list;
    for (const uint32_t gpu : gpus) list += (list.empty() ? "" : ",") + std::to_string(gpu);
    return fail(ncclInvalidUsage, "this library was compiled without the GPUs %s", list.c_str());
  }
  if (found.given) {
    if (nranks > found.stands.size())
      return fail(ncclInvalidUsage, "the machine of COLLC_TOPOLOGY has %zu GPUs, the communicator %u ranks",
                  found.stands.size(), nranks);
    if (find_set({found.stands.begin(), found.stands.begin() + nranks}, placement)) return {};
    return fail(ncclInvalidUsage, "this library was compiled without the first %u GPUs of the machine of COLLC_TOPOLOGY",
                nranks);
  }
  // Nobody said which GPUs: the first ones where they are served, else the first allocation of that size as it was written.
  std::vector<uint32_t> first(nranks);
  for (uint32_t r = 0; r < nranks; ++r) first[r] = r;
  if (tables().nallocations > 1 && nranks <= tables().ngpus && find_set(first, placement)) return {};
  placement->allocation = any;
  if (tables().ngpu_sets == 1) placement->set = tables().gpu_sets;
  return {};
}

Status check_gpus(uint32_t nranks, const std::vector<uint32_t> &gpus) {
  if (gpus.empty() || gpus.size() >= nranks) return {};
  return fail(ncclInvalidUsage,
              "COLLC_GPUS names %zu GPU%s for a communicator of %u ranks: name one for each, in the ranks' order", gpus.size(),
              gpus.size() == 1 ? "" : "s", nranks);
}

}  // namespace collc
