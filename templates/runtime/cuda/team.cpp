#include "cuda/team.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/log.h"
#include "bootstrap/exchange_fd.h"
#include "cuda/fill.h"
#include "cuda/ways.h"

namespace collc::cuda {
namespace {

// The message of a rank after each step: its problem, if it has one.
struct TeamVote {
  char problem[160];
};

// The multicast object of rank 0: its size, and the descriptor for ranks in the same process.
struct TeamOffer {
  uint64_t bytes;
  unsigned char process[16];
  int32_t file;
};

struct TeamMaker {
  const RankContext &context;
  const Device &device;
  Team *team;
  MemoryHandle object = 0;
  MemoryHandle memory = 0;
  Descriptor file;
  std::string why;

  // Collective: writes whether the step has succeeded on all ranks.
  Status vote(const Status &mine, bool *all) {
    TeamVote own = {};
    if (!mine.ok()) std::snprintf(own.problem, sizeof own.problem, "%s", mine.text().c_str());
    std::vector<TeamVote> votes;
    COLLC_RETURN_IF_FAILED(exchange(context.exchange, own, &votes));
    *all = true;
    for (uint32_t r = 0; r < context.nranks && *all; ++r) {
      if (votes[r].problem[0] == '\0') continue;
      *all = false;
      why = format("%s: %s", context.placement.name_of(r).c_str(), votes[r].problem);
    }
    return {};
  }

  AllocationProperties properties() const {
    AllocationProperties made = {};
    made.type = kPinnedAllocation;
    made.handle_types = kFileDescriptor;
    made.location = {kOnDevice, device.number};
    return made;
  }

  Status can(const std::string &may_not) const {
    const Driver &cu = driver();
    if (!may_not.empty()) return fail(ncclInvalidUsage, "%s", may_not.c_str());
    if (context.only_host_memory) return fail(ncclInvalidUsage, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL forbids peer access");
    for (uint32_t r = 0; r < context.nranks; ++r)
      if (!context.placement.is_here(r)) return fail(ncclInvalidUsage, "ranks are on several machines");
    if (cu.multicast_create == nullptr || cu.multicast_add == nullptr || cu.multicast_bind == nullptr ||
        cu.multicast_granularity == nullptr)
      return fail(ncclInvalidUsage, "the driver is older than 530 and knows no multicast");
    if (!has_attribute(device, kMulticast))
      return fail(ncclInvalidUsage, "GPU %d has no multicast (Hopper and newer behind NVSwitches have)", device.number);
    if (!has_descriptors(device)) return fail(ncclInvalidUsage, "the driver makes no file descriptors of GPU memory");
    return {};
  }

  // On rank 0: makes the object, in whole pages of all kinds.
  Status create(size_t bytes, TeamOffer *offer) {
    const Driver &cu = driver();
    const AllocationProperties memory_properties = properties();
    MulticastProperties wanted = {context.nranks, bytes, kFileDescriptor, 0};
    size_t page = 0, unit = 0;
    COLLC_RETURN_IF_FAILED(check(cu.allocation_granularity(&page, &memory_properties, 0), "asking for the size of pages"));
    COLLC_RETURN_IF_FAILED(check(cu.multicast_granularity(&unit, &wanted, 0), "asking for the size of multicast pages"));
    const size_t whole = std::max({page, unit, size_t{1}});
    wanted.bytes = (std::max(bytes, size_t{1}) + whole - 1) / whole * whole;
    COLLC_RETURN_IF_FAILED(check(cu.multicast_create(&object, &wanted), "making a multicast object"));
    Result exported = 0;
    file = Descriptor::open([&] {
      int fd = -1;
      exported = cu.export_handle(&fd, object, kFileDescriptor, 0);
      if (exported != 0) return -1;
      fcntl(fd, F_SETFD, FD_CLOEXEC);
      return fd;
    });
    COLLC_RETURN_IF_FAILED(check(exported, "making a file descriptor of a multicast object"));
    offer->bytes = wanted.bytes;
    offer->file = file.get();
    return {};
  }

  Status import(int from) {
    if (context.rank == 0) return {};
    void *const descriptor = reinterpret_cast<void *>(static_cast<intptr_t>(from));
    return check(driver().import_handle(&object, descriptor, kFileDescriptor), "opening a multicast object");
  }

  Status map(MemoryHandle handle, size_t bytes, VirtualMemory *made) {
    const Driver &cu = driver();
    Address at = 0;
    COLLC_RETURN_IF_FAILED(check(cu.reserve_addresses(&at, bytes, 0, 0, 0), "reserving addresses"));
    if (const Result result = cu.map_memory(at, bytes, 0, handle, 0); result != 0) {
      cu.free_addresses(at, bytes);
      return check(result, "mapping");
    }
    *made = {at, bytes};
    if (!grant(device, *made)) return fail(ncclUnhandledCudaError, "GPU %d gets no access to what is mapped", device.number);
    return {};
  }

  Status bind(size_t bytes) {
    const Driver &cu = driver();
    const AllocationProperties wanted = properties();
    COLLC_RETURN_IF_FAILED(check(cu.create_memory(&memory, bytes, &wanted, 0), "allocating"));
    COLLC_RETURN_IF_FAILED(map(memory, bytes, &team->own));
    COLLC_RETURN_IF_FAILED(check(cu.multicast_bind(object, 0, memory, 0, bytes, 0), "binding memory to a multicast object"));
    return alone("clearing GPU memory",
                 [&](const Driver &driver, Stream stream) { return driver.fill_async(team->own.at, 0, bytes, stream); });
  }

  // Mappings keep what they are of.
  void release(bool all) {
    const Driver &cu = driver();
    if (object != 0) cu.release_handle(object);
    if (memory != 0) cu.release_handle(memory);
    object = memory = 0;
    if (all) return;
    for (VirtualMemory *mapped : {&team->all, &team->own}) {
      if (mapped->bytes != 0) unmap(*mapped);
      *mapped = {};
    }
  }
};

// `all`: whether every rank has come to the end. Each step is one that all must have done before any goes on.
Status make_team(TeamMaker &maker, size_t bytes, const std::string &may_not, bool *all) {
  const RankContext &context = maker.context;
  COLLC_RETURN_IF_FAILED(maker.vote(maker.can(may_not), all));
  if (!*all) return {};
  TeamOffer offer = {0, {}, -1};
  std::memcpy(offer.process, process_token(), sizeof offer.process);
  const Status created = context.rank == 0 ? maker.create(bytes, &offer) : Status();
  COLLC_RETURN_IF_FAILED(maker.vote(created, all));
  if (!*all) return {};
  std::vector<TeamOffer> offers;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, offer, &offers));
  std::vector<Descriptor> files;
  COLLC_RETURN_IF_FAILED(exchange_descriptors(context, maker.file, &files));
  const bool is_mine = std::memcmp(offers[0].process, process_token(), sizeof offer.process) == 0;
  Status next = maker.import(is_mine ? offers[0].file : files[0].get());
  if (next.ok()) next = check(driver().multicast_add(maker.object, maker.device.number), "adding a GPU to a multicast object");
  COLLC_RETURN_IF_FAILED(maker.vote(next, all));
  if (!*all) return {};
  COLLC_RETURN_IF_FAILED(maker.vote(maker.bind(offers[0].bytes), all));
  if (!*all) return {};
  return maker.vote(maker.map(maker.object, offers[0].bytes, &maker.team->all), all);
}

}  // namespace

Status share_team(const RankContext &context, const Device &device, size_t bytes, const std::string &may_not, Team *team) {
  TeamMaker maker{context, device, team, 0, 0, {}, {}};
  bool all = false;
  const Status made = make_team(maker, bytes, may_not, &all);
  maker.release(made.ok() && all);
  if (made.ok() && !all && context.rank == 0) log(LogLevel::kInfo, "sums stay out of the switches (%s)", maker.why.c_str());
  if (made.ok() && all)
    log(LogLevel::kInfo, "rank %u: %.1f MB behind a multicast address", context.rank,
        static_cast<double>(team->own.bytes) / 1e6);
  return made;
}

}  // namespace collc::cuda
