#include "plan.h"

#include <algorithm>
#include <set>

extern "C" {
extern const collc::Tables collc_tables;
extern const char collc_manifest[];
extern const uint64_t collc_manifest_size;
}

namespace collc {

const Tables &tables() { return collc_tables; }

uint64_t build_fingerprint() {
  // FNV-1a of the manifest, which holds the build id.
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t i = 0; i < collc_manifest_size; ++i)
    hash = (hash ^ static_cast<unsigned char>(collc_manifest[i])) * 0x100000001b3;
  return hash;
}

Status place(uint32_t nranks, const std::vector<std::string> &declared, Placement *placement) {
  if (!declared.empty() && declared.size() != nranks)
    return fail(ncclInvalidUsage, "COLLC_GPUS names %zu GPUs for %u ranks", declared.size(), nranks);
  placement->allocation = nullptr;
  placement->plan_rank.resize(nranks);
  placement->nccl_rank.resize(nranks);
  for (uint32_t r = 0; r < nranks; ++r) placement->plan_rank[r] = placement->nccl_rank[r] = r;
  if (nranks == 1) return {};
  std::set<uint32_t> served;
  for (uint32_t a = 0; a < tables().nallocations; ++a) {
    const Allocation &allocation = tables().allocations[a];
    served.insert(allocation.nranks);
    if (allocation.nranks == nranks && placement->allocation == nullptr) placement->allocation = &allocation;
  }
  if (placement->allocation != nullptr) return {};
  std::string list;
  for (const uint32_t n : served) list += (list.empty() ? "" : ", ") + std::to_string(n);
  return fail(ncclInvalidUsage, "this library was compiled for %s ranks, the communicator has %u", list.c_str(), nranks);
}

const Program *choose_program(const Allocation &allocation, Collective collective, int root, uint64_t bytes) {
  const Program *chosen = nullptr;
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = tables().programs[allocation.first_program + p];
    if (program.collective == collective && program.root == root && program.min_bytes <= bytes) chosen = &program;
  }
  return chosen;
}

const char *name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kAllToAll:
      return "alltoall";
    case Collective::kSendRecv:
      return "sendrecv";
  }
  return "unknown collective";
}

}  // namespace collc
