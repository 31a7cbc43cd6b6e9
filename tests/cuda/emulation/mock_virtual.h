// Virtual memory of the mock driver: each piece of memory is a separate file, and a descriptor can pass it on, so it needs neither
// the process that created it nor a common PID namespace. The last page of the file describes it.
#pragma once
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace mock {

constexpr size_t kGranularity = size_t{2} << 20;
constexpr int kShareable = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

struct Properties {  // CUmemAllocationProp
  int type, handle_types, location, device;
  void *for_windows;
  unsigned char flags[8];
};
struct Access {  // CUmemAccessDesc
  int location, device, flags;
};

// A file of memory, and a handle of it.
struct VirtualPiece {
  size_t bytes;
  int device;  // of the machine
  int shareable;
  int file;
};

struct Mapped {
  size_t bytes;
  int device;  // whose memory it is
  bool is_own;
  unsigned long long handle;
  int file;  // open as long as it is mapped
};

// Opens a file again, with separate locks.
inline int open_anew(int file) { return open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC); }

class Virtual {
 public:
  unsigned long long create(size_t bytes, int device, int shareable) {
    VirtualPiece piece{bytes, device, shareable, memfd_create("mock-virtual", MFD_CLOEXEC)};
    if (piece.file < 0 || ftruncate(piece.file, static_cast<off_t>(bytes + sizeof piece)) != 0) std::abort();
    if (pwrite(piece.file, &piece, sizeof piece, static_cast<off_t>(bytes)) != sizeof piece) std::abort();
    return note(piece, true);
  }
  // A handle of the memory behind a descriptor; 0: it is none.
  unsigned long long import(int file) {
    struct stat info;
    VirtualPiece piece = {};
    const auto size = static_cast<off_t>(sizeof piece);
    if (fstat(file, &info) != 0 || info.st_size <= size) return 0;
    if (pread(file, &piece, sizeof piece, info.st_size - size) != size) return 0;
    if (piece.bytes != static_cast<size_t>(info.st_size - size)) return 0;
    piece.file = open_anew(file);
    flock(piece.file, LOCK_SH);  // says, as long as any descriptor of it is open, that somebody else has the memory
    return note(piece, false);
  }
  const VirtualPiece *find(unsigned long long handle) const {
    const auto found = handles_.find(handle);
    return found == handles_.end() ? nullptr : &found->second;
  }
  bool release(unsigned long long handle) {
    const VirtualPiece *piece = find(handle);
    if (piece == nullptr) return false;
    close(piece->file);
    own_.erase(handle);
    return handles_.erase(handle) == 1;
  }

  // Addresses that were freed come again at once.
  unsigned long long reserve(size_t bytes) {
    if (std::vector<unsigned long long> &freed = freed_[bytes]; !freed.empty()) {
      const unsigned long long at = freed.back();
      freed.pop_back();
      reserved_[at] = bytes;
      return at;
    }
    void *at = mmap(nullptr, bytes + kGranularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    const uint64_t begin = (reinterpret_cast<uint64_t>(at) + kGranularity - 1) / kGranularity * kGranularity;
    reserved_[begin] = bytes;
    return begin;
  }
  bool free(unsigned long long at, size_t bytes) {
    const auto found = reserved_.find(at);
    if (found == reserved_.end() || found->second != bytes || mapped_.count(at) != 0) return false;
    freed_[bytes].push_back(at);
    reserved_.erase(found);
    return true;
  }
  bool is_reserved(unsigned long long at, size_t bytes) const {
    const auto found = reserved_.find(at);
    return found != reserved_.end() && found->second == bytes && mapped_.count(at) == 0;
  }
  // Where the memory of a handle is mapped; 0: nowhere.
  uint64_t where(unsigned long long handle) const {
    for (const auto &[at, mapped] : mapped_)
      if (mapped.handle == handle) return at;
    return 0;
  }
  // A whole reservation by a whole piece.
  bool map(unsigned long long at, size_t bytes, unsigned long long handle) {
    const VirtualPiece *piece = find(handle);
    const auto range = reserved_.find(at);
    if (piece == nullptr || piece->bytes != bytes || range == reserved_.end() || range->second != bytes) return false;
    if (mapped_.count(at) != 0) return false;
    const int flags = MAP_SHARED | MAP_FIXED;
    if (mmap(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE, flags, piece->file, 0) == MAP_FAILED) return false;
    mapped_[at] = {bytes, piece->device, own_[handle], handle, fcntl(piece->file, F_DUPFD_CLOEXEC, 0)};
    return true;
  }
  const Mapped *mapping(unsigned long long at) const {
    auto found = mapped_.upper_bound(at);
    if (found == mapped_.begin()) return nullptr;
    --found;
    return at < found->first + found->second.bytes ? &found->second : nullptr;
  }
  bool is_mapping(unsigned long long at, size_t bytes) const {
    const auto found = mapped_.find(at);
    return found != mapped_.end() && found->second.bytes == bytes;
  }
  void unmap(unsigned long long at) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    const Mapped gone = mapped_.at(at);
    mmap(reinterpret_cast<void *>(at), gone.bytes, PROT_NONE, flags, -1, 0);
    mapped_.erase(at);
    if (gone.is_own)
      elsewhere_.push_back(gone);
    else
      close(gone.file);
  }
  // Takes memory that was unmapped here, and is mapped in no other process any more.
  std::vector<Mapped> take_returned() {
    std::vector<Mapped> returned, held;
    for (const Mapped &one : elsewhere_) {
      const int file = open_anew(one.file);
      const bool is_free = flock(file, LOCK_EX | LOCK_NB) == 0;
      close(file);
      (is_free ? returned : held).push_back(one);
      if (is_free) close(one.file);
    }
    elsewhere_ = held;
    return returned;
  }
  // Returns the number of address ranges with their mappings, plus memory that is mapped nowhere.
  size_t pieces() const {
    size_t unmapped = 0;
    for (const auto &[handle, piece] : handles_) unmapped += where(handle) == 0 ? 1 : 0;
    return reserved_.size() + unmapped;
  }

 private:
  unsigned long long note(const VirtualPiece &piece, bool is_own) {
    handles_[++last_] = piece;
    own_[last_] = is_own;
    return last_;
  }

  unsigned long long last_ = 0;
  std::map<unsigned long long, VirtualPiece> handles_;
  std::map<unsigned long long, bool> own_;
  std::map<unsigned long long, size_t> reserved_;
  std::map<size_t, std::vector<unsigned long long>> freed_;
  std::map<unsigned long long, Mapped> mapped_;
  std::vector<Mapped> elsewhere_;  // own memory that is unmapped here, and perhaps not in other processes
};

}  // namespace mock
