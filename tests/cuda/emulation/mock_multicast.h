// Multicast objects of the mock driver: a file with the memories of all members, so that every process reaches them. Memory
// that is bound to one moves there; the object's own addresses hold nothing, and kernels use them only by multimem verbs.
#pragma once
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace mock {

struct MulticastProperties {  // CUmulticastObjectProp
  unsigned ndevices;
  size_t bytes;
  unsigned long long handle_types, flags;
};

constexpr int kNotReadyYet = 802;  // CUDA_ERROR_SYSTEM_NOT_READY

class Multicast {
 public:
  static constexpr unsigned long long kFirstHandle = 1ull << 40;

  unsigned long long create(const MulticastProperties &wanted) {
    const int file = memfd_create("mock-multicast", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(kPage + wanted.ndevices * wanted.bytes)) != 0) std::abort();
    Object *object = open(file);
    std::memcpy(object->magic, kMagic, sizeof kMagic);
    object->bytes = wanted.bytes;
    object->ndevices = wanted.ndevices;
    return note(file, object);
  }
  // 0: the file is none.
  unsigned long long import(int file) {
    struct stat info;
    char magic[sizeof kMagic] = {};
    if (fstat(file, &info) != 0 || info.st_size <= kPage || pread(file, magic, sizeof magic, 0) != sizeof magic ||
        std::memcmp(magic, kMagic, sizeof magic) != 0)
      return 0;
    const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    return note(own, open(own));
  }
  bool has(unsigned long long handle) const { return handles_.count(handle) != 0; }
  int file(unsigned long long handle) const { return handles_.at(handle).file; }
  void release(unsigned long long handle) {
    close(handles_.at(handle).file);
    handles_.erase(handle);
  }

  int add(unsigned long long handle, int device) {
    Object &object = *handles_.at(handle).object;
    if (__atomic_exchange_n(&object.added[device], 1, __ATOMIC_SEQ_CST) != 0) return 1;
    return __atomic_add_fetch(&object.nadded, 1, __ATOMIC_SEQ_CST) > object.ndevices ? 1 : 0;
  }
  // Moves what is mapped at `at` into the file, where it is the next member.
  int bind(unsigned long long handle, int device, uint64_t at, size_t bytes) {
    const Handle &known = handles_.at(handle);
    Object &object = *known.object;
    if (__atomic_load_n(&object.nadded, __ATOMIC_SEQ_CST) != object.ndevices) return kNotReadyYet;
    if (object.added[device] == 0 || bytes != object.bytes) return 1;
    if (__atomic_exchange_n(&object.bound[device], 1, __ATOMIC_SEQ_CST) != 0) return 1;
    const unsigned member = __atomic_fetch_add(&object.nbound, 1, __ATOMIC_SEQ_CST);
    const auto place = static_cast<off_t>(kPage + member * bytes);
    if (mmap(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, known.file, place) ==
        MAP_FAILED)
      std::abort();
    return 0;
  }
  // The object at addresses that were reserved for it: where its members are for this process. Empty: not all are bound.
  std::vector<char *> map(unsigned long long handle, uint64_t at, size_t bytes) {
    const Handle &known = handles_.at(handle);
    const Object &object = *known.object;
    if (bytes != object.bytes || __atomic_load_n(&object.nbound, __ATOMIC_SEQ_CST) != object.ndevices) return {};
    const size_t all = object.ndevices * bytes;
    void *begin = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, known.file, kPage);
    if (begin == MAP_FAILED) std::abort();
    std::vector<char *> members;
    for (unsigned m = 0; m < object.ndevices; ++m) members.push_back(static_cast<char *>(begin) + m * bytes);
    mapped_[at] = {bytes, known.object, members};
    return members;
  }
  struct Mapping {
    size_t bytes;
    void *object;
    std::vector<char *> members;
  };
  const Mapping *mapping(uint64_t at) const {
    const auto found = mapped_.find(at);
    return found == mapped_.end() ? nullptr : &found->second;
  }
  bool has_device(const Mapping &mapping, int device) const {
    return static_cast<const Object *>(mapping.object)->added[device] != 0;
  }
  void unmap(uint64_t at) {
    const Mapping &gone = mapped_.at(at);
    munmap(gone.members[0], gone.members.size() * gone.bytes);
    mapped_.erase(at);
  }
  size_t pieces() const { return handles_.size() + mapped_.size(); }

 private:
  static constexpr char kMagic[16] = "mock multicast!";
  static constexpr off_t kPage = 4096;
  struct Object {
    char magic[16];
    size_t bytes;
    unsigned ndevices, nadded, nbound;
    unsigned added[64], bound[64];
  };
  static_assert(sizeof(Object) <= kPage, "one page");
  struct Handle {
    int file;
    Object *object;
  };

  static Object *open(int file) {
    void *at = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) std::abort();
    return static_cast<Object *>(at);
  }
  unsigned long long note(int file, Object *object) {
    handles_[++last_] = {file, object};
    return last_;
  }

  unsigned long long last_ = kFirstHandle;
  std::map<unsigned long long, Handle> handles_;
  std::map<uint64_t, Mapping> mapped_;
};

}  // namespace mock
