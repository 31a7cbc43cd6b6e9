#include "cuda/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file_limit.h"
#include "bootstrap/exchange_fd.h"

namespace collc::cuda {
namespace {

// The rank that makes the file of its machine.
uint32_t maker_of(const Placement &placement) {
  uint32_t maker = 0;
  while (!placement.is_here(maker)) ++maker;
  return maker;
}

Status make_file(const SharedFile &wanted, Descriptor *file) {
  *file = Descriptor::open([&wanted] { return memfd_create(wanted.name, MFD_CLOEXEC); });
  if (!*file) return fail_errno("no shared memory (memfd_create)", errno);
  if (within_file_limit([&] { return ftruncate(file->get(), static_cast<off_t>(wanted.bytes)); }) == 0) return {};
  return fail_errno("no shared memory (ftruncate)", errno);
}

// A number for each rank that comes for the file; the maker's own for those that need none of it.
std::vector<uint64_t> callers(const RankContext &context, const SharedFile &wanted) {
  std::vector<uint64_t> numbers(context.nranks, maker_of(context.placement));
  for (uint32_t rank = 0; rank < context.nranks; ++rank)
    if (wanted.takers[rank]) numbers[rank] = rank;
  return numbers;
}

Status hand_out(const RankContext &context, const SharedFile &wanted, Descriptor *file, Status *problem) {
  SocketName name = {};
  FdServer server;
  Status status = name_socket(&name);
  if (status.ok()) status = make_file(wanted, file);
  if (status.ok()) status = server.listen(name.text);
  if (!status.ok() && problem == nullptr) return status;
  if (!status.ok()) name = {};
  std::vector<SocketName> names;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, name, &names));
  if (!status.ok()) {
    *problem = status;
    file->reset();
    return {};
  }
  return end_creation(context, server.serve(file->get(), context.secret, callers(context, wanted), context.rank,
                                            context.seconds, context.gone));
}

Status fetch(const RankContext &context, const SharedFile &wanted, Descriptor *file) {
  std::vector<SocketName> names;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, SocketName(), &names));
  const uint32_t maker = maker_of(context.placement);
  if (!wanted.takers[context.rank] || names[maker].text[0] == '\0') return {};
  int fd = -1;
  COLLC_RETURN_IF_FAILED(end_creation(
      context, fetch_fd(names[maker].text, maker, context.secret, context.rank, context.seconds, context.gone, &fd)));
  *file = Descriptor::open([fd] { return fd; });
  struct stat info;
  if (fstat(file->get(), &info) != 0 || static_cast<size_t>(info.st_size) != wanted.bytes)
    return fail(ncclInternalError, "rank %u shared host memory of another size: do all ranks load the same library?", maker);
  return {};
}

}  // namespace

Status reserve(const Descriptor &file, size_t at, size_t bytes) {
  const int error =
      within_file_limit([&] { return posix_fallocate(file.get(), static_cast<off_t>(at), static_cast<off_t>(bytes)); });
  if (error == 0) return {};
  return fail_errno(
      format("cannot reserve %.1f MB of host memory for what passes between GPUs", static_cast<double>(bytes) / 1e6), error);
}

Status share_file(const RankContext &context, const SharedFile &wanted, Descriptor *file, Status *problem) {
  const bool any = std::find(wanted.takers.begin(), wanted.takers.end(), true) != wanted.takers.end();
  const bool makes = any && context.rank == maker_of(context.placement);
  return makes ? hand_out(context, wanted, file, problem) : fetch(context, wanted, file);
}

}  // namespace collc::cuda
