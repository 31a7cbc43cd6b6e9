#include "cuda/descriptors.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdint>

#include "bootstrap/exchange_fd.h"

namespace collc::cuda {
namespace {

AllocationProperties properties_of(const Device &device) {
  AllocationProperties properties = {};
  properties.type = kPinnedAllocation;
  properties.handle_types = kFileDescriptor;
  properties.location = {kOnDevice, device.number};
  return properties;
}

Result map_kept_handle(const Device &device, MemoryHandle handle, size_t bytes, VirtualMemory *mapped) {
  const Driver &cu = driver();
  Address at = 0;
  Result result = cu.reserve_addresses(&at, bytes, 0, 0, 0);
  if (result == 0) {
    result = cu.map_memory(at, bytes, 0, handle, 0);
    if (result != 0) cu.free_addresses(at, bytes);
  }
  if (result != 0) return result;
  *mapped = {at, bytes};
  if (!grant(device, *mapped)) {
    unmap(*mapped);
    *mapped = {};
    return kNotSupported;
  }
  return 0;
}

// Releases the handle: the mapping keeps the memory.
Result map_handle(const Device &device, MemoryHandle handle, size_t bytes, VirtualMemory *mapped) {
  const Result result = map_kept_handle(device, handle, bytes, mapped);
  driver().release_handle(handle);
  return result;
}

Descriptor export_handle(MemoryHandle handle, Result *exported) {
  return Descriptor::open([&] {
    int fd = -1;
    *exported = driver().export_handle(&fd, handle, kFileDescriptor, 0);
    if (*exported != 0) return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
  });
}

// Whole pages of the driver's.
Result create_pages(const Device &device, size_t bytes, MemoryHandle *handle, size_t *whole) {
  const Driver &cu = driver();
  const AllocationProperties properties = properties_of(device);
  size_t page = 0;
  if (const Result failed = cu.allocation_granularity(&page, &properties, 0); failed != 0) return failed;
  if (bytes > SIZE_MAX - page) return kOutOfMemory;
  *whole = (std::max(bytes, size_t{1}) + page - 1) / page * page;
  return cu.create_memory(handle, *whole, &properties, 0);
}

// `names`: empty where no descriptor is handed out. One rank hands out at a time, in the order of the ranks.
Status serve_and_fetch(const RankContext &context, const std::vector<SocketName> &names, const Descriptor &mine,
                       FdServer *server, std::vector<Descriptor> *theirs) {
  for (uint32_t owner = 0; owner < context.nranks; ++owner) {
    if (names[owner].text[0] == '\0' || !context.placement.is_here(owner)) continue;
    const auto is_with = [&](uint32_t rank) { return context.processes[rank] == context.processes[owner]; };
    if (owner == context.rank) {
      std::vector<uint64_t> callers(context.nranks);
      for (uint32_t rank = 0; rank < context.nranks; ++rank)
        callers[rank] = is_with(rank) || !context.placement.is_here(rank) ? owner : rank;
      COLLC_RETURN_IF_FAILED(server->serve(mine.get(), context.secret, callers, owner, context.seconds, context.gone));
    } else if (!is_with(context.rank)) {
      int fd = -1;
      COLLC_RETURN_IF_FAILED(
          fetch_fd(names[owner].text, owner, context.secret, context.rank, context.seconds, context.gone, &fd));
      (*theirs)[owner] = Descriptor::open([fd] { return fd; });
    }
  }
  return {};
}

}  // namespace

bool has_descriptors(const Device &device) {
  return has_attribute(device, kVirtualMemory) && has_attribute(device, kDescriptorsOfMemory);
}

Descriptor ShareableMemory::describe() const {
  Result exported = 0;
  return export_handle(handle_, &exported);
}

Status make_virtual(const Device &device, size_t bytes, VirtualMemory *made, Descriptor *file) {
  MemoryHandle handle = 0;
  size_t whole = 0;
  COLLC_RETURN_IF_FAILED(check(create_pages(device, bytes, &handle, &whole), "allocating"));
  Result exported = 0;
  *file = export_handle(handle, &exported);
  const Result mapped = map_handle(device, handle, whole, made);
  COLLC_RETURN_IF_FAILED(check(exported, "making a file descriptor of GPU memory"));
  return check(mapped, "mapping");
}

Result make_shareable(const Device &device, size_t bytes, VirtualMemory *made, std::shared_ptr<const ShareableMemory> *shared) {
  MemoryHandle handle = 0;
  size_t whole = 0;
  if (const Result failed = create_pages(device, bytes, &handle, &whole); failed != 0) return failed;
  *shared = std::make_shared<const ShareableMemory>(handle);
  return map_kept_handle(device, handle, whole, made);
}

bool map_virtual(const Device &device, int file, size_t bytes, VirtualMemory *mapped) {
  MemoryHandle handle = 0;
  void *const descriptor = reinterpret_cast<void *>(static_cast<intptr_t>(file));
  return driver().import_handle(&handle, descriptor, kFileDescriptor) == 0 && map_handle(device, handle, bytes, mapped) == 0;
}

bool grant(const Device &device, const VirtualMemory &memory) {
  const MemoryAccess access = {{kOnDevice, device.number}, kReadAndWrite};
  return driver().set_access(memory.at, memory.bytes, &access, 1) == 0;
}

bool unmap(const VirtualMemory &memory) {
  driver().unmap_memory(memory.at, memory.bytes);
  return driver().free_addresses(memory.at, memory.bytes) == 0;  // refused as long as something is mapped there
}

Status exchange_descriptors(const RankContext &context, const Descriptor &mine, std::vector<Descriptor> *theirs) {
  FdServer server;
  SocketName name = {};
  if (mine) {
    COLLC_RETURN_IF_FAILED(name_socket(&name));
    COLLC_RETURN_IF_FAILED(server.listen(name.text));
  }
  std::vector<SocketName> names;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, name, &names));
  theirs->clear();
  theirs->resize(context.nranks);
  return end_creation(context, serve_and_fetch(context, names, mine, &server, theirs));
}

}  // namespace collc::cuda
