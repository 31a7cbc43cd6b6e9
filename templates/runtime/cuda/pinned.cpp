#include "cuda/pinned.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>

#include "base/function_ref.h"
#include "cuda/shared_file.h"

namespace collc::cuda {
namespace {

// Why a rank cannot have its memory; empty: it has.
struct Problem {
  char text[200];
};

double megabytes(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

// The ranks that need a part of the file.
std::vector<bool> takers_of(const RankContext &context, const PinnedPlan &plan) {
  std::vector<bool> takers(context.nranks);
  for (const PinnedPlan::Region &region : plan.regions())
    for (const uint32_t rank : {region.low, region.high}) takers[context.placement.nccl_rank[rank]] = true;
  return takers;
}

// Returns the number of the memory next to a GPU in the system; below 0: the system has only one, or does not report it.
int memory_near(DeviceNumber device) {
  char bus[32] = "";
  if (driver().device_bus(bus, sizeof bus, device) != 0) return -1;
  for (char &one : bus) one = static_cast<char>(std::tolower(static_cast<unsigned char>(one)));
  std::FILE *const file = std::fopen(("/sys/bus/pci/devices/" + std::string(bus) + "/numa_node").c_str(), "re");
  int node = -1;
  if (file != nullptr && std::fscanf(file, "%d", &node) != 1) node = -1;
  if (file != nullptr) std::fclose(file);
  return node;
}

// A part of a file that has no pages yet, mapped at `at`. Containers may forbid it; then they are near the core that takes
// them.
Status reserve_near(DeviceNumber device, const Descriptor &file, size_t from, size_t bytes, void *at) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[16] = {};
  const int node = memory_near(device);
  if (node >= 0 && node < kBits * 16) {
    nodes[node / kBits] = 1ul << node % kBits;
    syscall(SYS_mbind, at, bytes, kPreferred, nodes, kBits * 16ul, 0u);
  }
  return reserve(file, from, bytes);
}

// Pinning would take pages for others that have not come to say where theirs are to be.
Status meet(const RankContext &context) {
  std::vector<uint32_t> here;
  return exchange(context.exchange, uint32_t{1}, &here);
}

}  // namespace

PinnedMemory::PinnedMemory() : process_(getpid()) {}

Status PinnedMemory::map(const Descriptor &file, size_t from, size_t bytes, uint32_t key) {
  void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), static_cast<off_t>(from));
  if (at == MAP_FAILED) return fail_errno(format("cannot map %.1f MB of host memory", megabytes(bytes)), errno);
  regions_[key].at = at;
  regions_[key].bytes = bytes;
  madvise(at, bytes, MADV_DONTFORK);  // pinned pages belong only to this process
  return {};
}

Status PinnedMemory::pin(uint32_t key, const char *need) {
  const Driver &cu = driver();
  Mapping &mapping = regions_[key];
  const Result pinned = cu.register_host(mapping.at, mapping.bytes, kHostPortableMapped);
  if (pinned != 0) {
    const Status why = check(pinned, "pinning");
    return fail(ncclUnhandledCudaError, "%s%.1f MB cannot be pinned: %s", need, megabytes(mapping.bytes), why.text().c_str());
  }
  mapping.pinned = true;
  return check(cu.host_address(&mapping.device, mapping.at, 0), "mapping pinned memory");
}

Status PinnedMemory::share(const RankContext &context, DeviceNumber device, const PinnedPlan &plan,
                           std::unique_ptr<PinnedMemory> *made, std::string *refused) {
  // Machines may differ in what they need, and all ranks take part in an exchange.
  if (plan.regions().empty() && context.placement.machine.empty()) return {};
  const bool spare = plan.is_spare() && context.placement.machine.empty();
  Descriptor file;
  Status mine;
  COLLC_RETURN_IF_FAILED(
      share_file(context, {"collc-pinned", plan.bytes(), takers_of(context, plan)}, &file, spare ? &mine : nullptr));
  made->reset(new PinnedMemory);
  const uint32_t me = context.placement.plan_rank[context.rank];
  const auto for_each = [&](FunctionRef<Status(const PinnedPlan::Region &, uint32_t peer)> body) {
    for (const PinnedPlan::Region &region : plan.regions())
      if (mine.ok() && file && (region.low == me || region.high == me))
        mine = body(region, region.low == me ? region.high : region.low);
  };
  for_each([&](const PinnedPlan::Region &region, uint32_t peer) -> Status {
    COLLC_RETURN_IF_FAILED((*made)->map(file, region.at, region.bytes, peer));
    if (peer > me) return {};
    return reserve_near(device, file, region.at, region.bytes, (*made)->regions_[peer].at);
  });
  COLLC_RETURN_IF_FAILED(meet(context));
  const char *const need = spare ? "" : "GPUs that do not reach each other need pinned host memory, and ";
  for_each([&](const PinnedPlan::Region &, uint32_t peer) { return (*made)->pin(peer, need); });
  if (!spare) return mine;
  Problem problem = {};
  if (!mine.ok()) std::snprintf(problem.text, sizeof problem.text, "%s", mine.text().c_str());
  std::vector<Problem> problems;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, problem, &problems));
  for (uint32_t rank = 0; rank < context.nranks && refused->empty(); ++rank)
    if (problems[rank].text[0] != '\0') *refused = format("rank %u: %s", rank, problems[rank].text);
  return {};
}

Status PinnedMemory::share_slots(const RankContext &context, DeviceNumber device, size_t bytes,
                                 std::unique_ptr<PinnedMemory> *made, Status *problem) {
  Descriptor file;
  const SharedFile wanted{"collc-slots", context.nranks * bytes, std::vector<bool>(context.nranks, true)};
  COLLC_RETURN_IF_FAILED(share_file(context, wanted, &file, problem));
  made->reset(new PinnedMemory);
  if (problem->ok() && !file) *problem = fail(ncclSystemError, "another rank has no host memory for all");
  if (problem->ok()) *problem = (*made)->map(file, 0, wanted.bytes, 0);
  const size_t mine = context.rank * bytes;
  if (problem->ok()) *problem = reserve_near(device, file, mine, bytes, static_cast<char *>((*made)->regions_[0].at) + mine);
  COLLC_RETURN_IF_FAILED(meet(context));
  if (problem->ok()) *problem = (*made)->pin(0, "");
  return {};
}

PinnedMemory::~PinnedMemory() {
  if (process_ != getpid()) return;
  for (const auto &[peer, mapping] : regions_) {
    if (mapping.pinned) driver().unregister_host(mapping.at);
    if (mapping.at != nullptr) munmap(mapping.at, mapping.bytes);
  }
}

}  // namespace collc::cuda
