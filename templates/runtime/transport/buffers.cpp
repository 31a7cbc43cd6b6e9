#include "transport/buffers.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "base/file_limit.h"
#include "control/segment.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace collc {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr char kName[] = "collc-buffer";

// The page that follows a buffer.
struct Trailer {
  std::atomic<uint64_t> number;
  std::atomic<uint32_t> freed;
};

Trailer &trailer_of(const char *at, uint64_t bytes) {
  return *reinterpret_cast<Trailer *>(const_cast<char *>(at) + whole_pages(bytes));
}

struct Owned {
  BufferHandle handle;
  int process;            // that allocated it; a forked child has its parent's buffers, but must not mark them as freed
  // Inode behind the descriptor, since the process may have closed the descriptor and opened another file with its number.
  ino_t file;
  bool detached = false;  // some of its pages are no longer shared
};

// The buffers of this process, by address.
struct Registry {
  std::mutex mutex;
  std::map<uint64_t, Owned> buffers;
  std::atomic<uint64_t> state{0};  // counts changes of `buffers`
};

// The fork handlers hold the lock during a fork, so a child finds it free and the map consistent, whatever threads its parent
// had.
Registry &all_buffers() {
  static auto *const only = new Registry;  // never destroyed, because threads may outlive static objects
  static const int registered = pthread_atfork([] { all_buffers().mutex.lock(); }, [] { all_buffers().mutex.unlock(); },
                                               [] { all_buffers().mutex.unlock(); });
  if (registered != 0) throw std::bad_alloc();
  return *only;
}

// Maps a file. Aligns a large file to huge pages, because elsewhere the kernel maps small pages.
char *map_aligned(int file, uint64_t bytes) {
  const uint64_t align = bytes >= kHugePage ? kHugePage : kPage;
  void *place = mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return nullptr;
  char *begin = static_cast<char *>(place);
  const uint64_t lead = (align - reinterpret_cast<uintptr_t>(begin) % align) % align;
  void *made = mmap(begin + lead, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  if (made == MAP_FAILED) {
    munmap(begin, bytes + align);
    return nullptr;
  }
  if (lead > 0) munmap(begin, lead);
  if (lead < align) munmap(begin + lead + bytes, align - lead);
  if (bytes >= kHugePage) madvise(made, bytes, MADV_HUGEPAGE);
  return begin + lead;
}

// Reserves the memory now, because running out of memory later would raise SIGBUS.
bool reserve(int file, char *at, uint64_t bytes) {
  if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  return within_file_limit([&] { return posix_fallocate(file, 0, static_cast<off_t>(bytes)); }) == 0;
}

// Returns the inode of an open file; 0 if the descriptor is closed.
ino_t file_behind(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 ? info.st_ino : 0;
}

// Returns whether a path below /proc is a memfd of allocate_buffer(). In another container the process number may refer to
// another process, even to this one, and opening a pipe would wait.
bool is_buffer(const char *path) {
  char target[64] = {};
  if (readlink(path, target, sizeof target - 1) < 0) return false;
  const std::string wanted = std::string("/memfd:") + kName;
  return std::strncmp(target, wanted.c_str(), wanted.size()) == 0;
}

bool make_buffer(uint64_t bytes, BufferHandle *handle) {
  handle->bytes = bytes;
  if (getrandom(&handle->number, sizeof handle->number, 0) != sizeof handle->number || handle->number == 0) return false;
  handle->descriptor = memfd_create(kName, MFD_CLOEXEC);
  if (handle->descriptor < 0) return false;
  const uint64_t total = whole_pages(bytes) + kPage;
  char *at = nullptr;
  const auto grow = [&] { return ftruncate(handle->descriptor, static_cast<off_t>(total)); };
  if (within_file_limit(grow) == 0) at = map_aligned(handle->descriptor, total);
  if (at != nullptr && !reserve(handle->descriptor, at, total)) {
    munmap(at, total);
    at = nullptr;
  }
  if (at == nullptr) {
    close(handle->descriptor);
    return false;
  }
  trailer_of(at, bytes).number.store(handle->number, std::memory_order_release);
  handle->base = reinterpret_cast<uint64_t>(at);
  return true;
}

}  // namespace

std::atomic<uint32_t> live_buffers{0};

void *allocate_buffer(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  BufferHandle handle;
  const bool shared = make_buffer(bytes, &handle);
  if (!shared) {
    handle = {};  // no longer shared
    handle.bytes = whole_pages(bytes);
    handle.base = reinterpret_cast<uint64_t>(std::aligned_alloc(kPage, handle.bytes));
    if (handle.base == 0) return nullptr;
  }
  Registry &all = all_buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.buffers[handle.base] = {handle, getpid(), shared ? file_behind(handle.descriptor) : 0};
  live_buffers.fetch_add(shared ? 1 : 0, std::memory_order_relaxed);
  all.state.fetch_add(1, std::memory_order_release);
  return reinterpret_cast<void *>(handle.base);
}

Status release_buffer(void *memory) {
  if (memory == nullptr) return {};
  const auto at = reinterpret_cast<uint64_t>(memory);
  Registry &all = all_buffers();
  Owned owned = {};
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.buffers.upper_bound(at);
    if (found != all.buffers.begin()) --found;
    const bool within = found != all.buffers.end() && at >= found->first && at - found->first < found->second.handle.bytes;
    if (!within) return fail(ncclInvalidArgument, "%p is no buffer of ncclMemAlloc, or was freed before", memory);
    if (found->first != at)
      return fail(ncclInvalidArgument, "%p lies within a buffer of ncclMemAlloc; give the address where it begins, %p", memory,
                  reinterpret_cast<void *>(found->first));
    owned = found->second;
    all.buffers.erase(found);
    live_buffers.fetch_sub(owned.handle.number != 0 ? 1 : 0, std::memory_order_relaxed);
    all.state.fetch_add(1, std::memory_order_release);
  }
  if (owned.handle.number == 0) {
    std::free(memory);
    return {};
  }
  if (owned.process == getpid())
    trailer_of(static_cast<char *>(memory), owned.handle.bytes).freed.store(1, std::memory_order_release);
  munmap(memory, whole_pages(owned.handle.bytes) + kPage);
  if (file_behind(owned.handle.descriptor) == owned.file) close(owned.handle.descriptor);
  return {};
}

bool detach_buffer(const void *address, uint64_t bytes) {
  Registry &all = all_buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto at = reinterpret_cast<uint64_t>(address);
  auto found = all.buffers.upper_bound(at);
  if (found == all.buffers.begin() || !(--found)->second.handle.holds(at, bytes)) return true;
  found->second.detached = true;
  all.state.fetch_add(1, std::memory_order_release);
  // Only these pages, because other communicators may be using the rest.
  const uint64_t begin = at / kPage * kPage, length = whole_pages(at + bytes - begin);
  void *const target = reinterpret_cast<void *>(begin);
  void *const other = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (other == MAP_FAILED) return false;
  std::memcpy(other, target, length);
  if (mremap(other, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, target) != MAP_FAILED) return true;
  munmap(other, length);
  return false;
}

const BufferHandle &BufferLookup::find(const void *address, uint64_t bytes) {
  static const BufferHandle none;
  Registry &all = all_buffers();
  const auto at = reinterpret_cast<uint64_t>(address);
  const uint64_t state = all.state.load(std::memory_order_acquire);
  if (state == state_ && at == last_missed_) return none;
  if (state == state_ && last_.holds(at, bytes)) return last_;
  const std::lock_guard<std::mutex> lock(all.mutex);
  const uint64_t now = all.state.load(std::memory_order_relaxed);
  if (now != state_) {
    last_ = {};
    last_missed_ = 0;
    state_ = now;
  }
  auto found = all.buffers.upper_bound(at);
  if (found == all.buffers.begin() || !(--found)->second.handle.holds(at, bytes) || found->second.detached) {
    last_missed_ = at;
    return none;
  }
  last_ = found->second.handle;
  return last_;
}

MappedBuffers::~MappedBuffers() {
  for (const auto &[number, mapping] : all_) munmap(mapping.at, whole_pages(mapping.bytes) + kPage);
}

char *MappedBuffers::translate(int process, const BufferHandle &handle, uint64_t address, uint64_t bytes) {
  if (!handle.holds(address, bytes)) return nullptr;
  const uint64_t offset = address - handle.base;
  auto found = all_.find(handle.number);
  if (found == all_.end()) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", process, handle.descriptor);
    const int file = is_buffer(path) ? open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK) : -1;
    if (file < 0) return nullptr;
    const uint64_t total = whole_pages(handle.bytes) + kPage;
    struct stat info;
    char *at = nullptr;
    if (fstat(file, &info) == 0 && static_cast<uint64_t>(info.st_size) == total) at = map_aligned(file, total);
    close(file);
    if (at == nullptr) return nullptr;
    if (trailer_of(at, handle.bytes).number.load(std::memory_order_acquire) != handle.number) {
      munmap(at, total);
      return nullptr;
    }
    madvise(at, total, MADV_DONTFORK);
    found = all_.emplace(handle.number, Mapping{at, handle.bytes}).first;
  }
  return found->second.at + offset;
}

void MappedBuffers::tidy(size_t looks) {
  for (looks = std::min(looks, all_.size()); looks > 0 && !all_.empty(); --looks) {
    auto next = all_.begin();
    std::advance(next, turn_++ % all_.size());
    const Mapping mapping = next->second;
    if (trailer_of(mapping.at, mapping.bytes).freed.load(std::memory_order_acquire) == 0) continue;
    all_.erase(next);
    munmap(mapping.at, whole_pages(mapping.bytes) + kPage);
  }
}

}  // namespace collc
