#include "cuda/pinned.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/descriptor.h"
#include "base/file_limit.h"
#include "base/random.h"
#include "bootstrap/exchange_fd.h"
#include "bootstrap/unique_id.h"

namespace collc::cuda {
namespace {

// The rank that makes the file of its machine.
uint32_t maker_of(const Placement &placement) {
  uint32_t maker = 0;
  while (!placement.is_here(maker)) ++maker;
  return maker;
}

// The local socket where the file is handed out, as text that ends with a zero.
struct SocketName {
  char text[64];
};

// What a rank cannot have; empty: nothing.
struct Problem {
  char text[200];
};

double megabytes(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

// Reserved now: running out of memory later would be a SIGBUS.
Status make_file(size_t bytes, Descriptor *file) {
  *file = Descriptor::open([] { return memfd_create("collc-pinned", MFD_CLOEXEC); });
  if (!*file) return fail_errno("no shared memory (memfd_create)", errno);
  const int error = within_file_limit([&] { return posix_fallocate(file->get(), 0, static_cast<off_t>(bytes)); });
  if (error == 0) return {};
  return fail_errno(format("cannot reserve %.1f MB of host memory for what passes between GPUs", megabytes(bytes)), error);
}

// A number for each rank that comes for the file; the maker's own for those that need none of it.
std::vector<uint64_t> callers(const RankContext &context, const PinnedPlan &plan) {
  std::vector<uint64_t> numbers(context.nranks, maker_of(context.placement));
  for (const PinnedPlan::Region &region : plan.regions())
    for (const uint32_t rank : {region.low, region.high})
      numbers[context.placement.nccl_rank[rank]] = context.placement.nccl_rank[rank];
  return numbers;
}

// `problem`: takes why there is no file, which then is no error; null: it is one.
Status hand_out(const RankContext &context, const PinnedPlan &plan, Descriptor *file, Status *problem) {
  unsigned char random[16] = {};
  SocketName name = {};
  FdServer server;
  Status status = random_bytes(random, sizeof random);
  std::snprintf(name.text, sizeof name.text, "collc-%s", hex_of(random, sizeof random).c_str());
  if (status.ok()) status = make_file(plan.bytes(), file);
  if (status.ok()) status = server.listen(name.text, context.secret.size());
  if (!status.ok() && problem == nullptr) return status;
  if (!status.ok()) name = {};
  std::vector<SocketName> names;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, name, &names));
  if (!status.ok()) {
    *problem = status;
    file->reset();
    return {};
  }
  return end_creation(
      context, server.serve(file->get(), context.secret, callers(context, plan), context.rank, context.seconds, context.gone));
}

Status fetch(const RankContext &context, const PinnedPlan &plan, Descriptor *file) {
  std::vector<SocketName> names;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, SocketName(), &names));
  const uint32_t maker = maker_of(context.placement);
  if (callers(context, plan)[context.rank] == maker || names[maker].text[0] == '\0') return {};
  int fd = -1;
  COLLC_RETURN_IF_FAILED(end_creation(
      context, fetch_fd(names[maker].text, maker, context.secret, context.rank, context.seconds, context.gone, &fd)));
  *file = Descriptor::open([fd] { return fd; });
  struct stat info;
  if (fstat(file->get(), &info) != 0 || static_cast<size_t>(info.st_size) != plan.bytes())
    return fail(ncclInternalError, "rank %u shared host memory of another size: do all ranks load the same library?", maker);
  return {};
}

}  // namespace

PinnedMemory::PinnedMemory() : process_(getpid()) {}

Status PinnedMemory::map(int fd, const PinnedPlan::Region &region, uint32_t peer, const char *need) {
  const Driver &cu = driver();
  Mapping &mapping = regions_[peer];
  void *at = mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(region.at));
  if (at == MAP_FAILED) return fail_errno(format("cannot map %.1f MB of host memory", megabytes(region.bytes)), errno);
  mapping.at = at;
  mapping.bytes = region.bytes;
  madvise(at, region.bytes, MADV_DONTFORK);  // pinned pages are of this process alone
  const Result pinned = cu.register_host(at, region.bytes, kHostPortableMapped);
  if (pinned != 0) {
    const Status why = check(pinned, "pinning");
    return fail(ncclUnhandledCudaError, "%s%.1f MB cannot be pinned: %s", need, megabytes(region.bytes), why.text().c_str());
  }
  mapping.pinned = true;
  return check(cu.host_address(&mapping.device, at, 0), "mapping pinned memory");
}

Status PinnedMemory::share(const RankContext &context, const PinnedPlan &plan, std::unique_ptr<PinnedMemory> *made,
                           std::string *refused) {
  // What one machine needs the others may not, and all take part in an exchange.
  if (plan.regions().empty() && context.placement.machine.empty()) return {};
  const bool makes = context.rank == maker_of(context.placement) && !plan.regions().empty();
  const bool spare = plan.is_spare() && context.placement.machine.empty();
  Descriptor file;
  Status mine;
  COLLC_RETURN_IF_FAILED(makes ? hand_out(context, plan, &file, spare ? &mine : nullptr) : fetch(context, plan, &file));
  made->reset(new PinnedMemory);
  const uint32_t me = context.placement.plan_rank[context.rank];
  const char *const need = spare ? "" : "GPUs that do not reach each other need pinned host memory, and ";
  for (const PinnedPlan::Region &region : plan.regions())
    if (mine.ok() && file && (region.low == me || region.high == me))
      mine = (*made)->map(file.get(), region, region.low == me ? region.high : region.low, need);
  if (!spare) return mine;
  Problem problem = {};
  if (!mine.ok()) std::snprintf(problem.text, sizeof problem.text, "%s", mine.text().c_str());
  std::vector<Problem> problems;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, problem, &problems));
  for (uint32_t rank = 0; rank < context.nranks && refused->empty(); ++rank)
    if (problems[rank].text[0] != '\0') *refused = format("rank %u: %s", rank, problems[rank].text);
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
