// The machine of the mock driver: which devices a process sees, who reaches whom, and the memory that is really shared.
//
// A pair is written "0-2", several pairs "0-2,1-3"; "all" means every pair. Numbers count the devices of the machine,
// independently of CUDA_VISIBLE_DEVICES.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "mock_runner.h"

namespace mock {

constexpr size_t kPoolBytes = size_t{256} << 20;
constexpr int kMostDevices = emulation::kMostDevices;

inline bool names_pair(const char *variable, int a, int b) {
  const char *text = std::getenv(variable);
  if (text == nullptr) return false;
  const std::string list = std::string(",") + text + ",";
  if (list == ",all,") return true;
  const std::string one = std::to_string(a), other = std::to_string(b);
  return list.find("," + one + "-" + other + ",") != std::string::npos ||
         list.find("," + other + "-" + one + ",") != std::string::npos;
}

// A device by its number, or by the beginning of its UUID: "GPU-03", or "MIG-03" for a part of a card. -1: none.
inline int named_device(const char *name) {
  if (std::strncmp(name, "GPU-", 4) != 0 && std::strncmp(name, "MIG-", 4) != 0) return std::atoi(name);
  unsigned first = 0;
  return std::sscanf(name + 4, "%2x", &first) == 1 ? static_cast<int>(first) - 1 : -1;
}

// The devices that this process sees, by their number here.
inline std::vector<int> visible_devices() {
  const int count = setting("MOCK_GPUS", 1);
  std::vector<int> seen;
  const char *list = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int d = 0; list == nullptr && d < count; ++d) seen.push_back(d);
  for (const char *at = list; at != nullptr && *at != '\0';) {
    const int device = named_device(at);
    if (device < 0 || device >= count) break;
    seen.push_back(device);
    at = std::strchr(at, ',');
    if (at != nullptr) ++at;
  }
  return seen;
}

// A descriptor of memory that other processes can map through /proc.
inline int shared_file() {
  const int fd = memfd_create("mock-devices", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kPoolBytes)) != 0) std::abort();
  return fd;
}

// The contents of a CUipcMemHandle.
struct MockHandle {
  int32_t process, file, device, unused;
  uint64_t offset, bytes, number;
  char rest[24];
};
static_assert(sizeof(MockHandle) == 64, "as CUipcMemHandle");

// Returns true if a process is ending. It closes everything soon.
inline bool is_ending(int process) {
  std::FILE *const file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
  if (file == nullptr) return true;
  char text[512] = {};
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char *const rest = size == 0 ? nullptr : std::strrchr(text, ')');  // the name may contain anything
  char state = 0;
  unsigned flags = 0;
  constexpr unsigned kExiting = 4;  // PF_EXITING of Linux
  if (rest == nullptr || std::sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2) return true;
  return state == 'Z' || state == 'X' || (flags & kExiting) != 0;
}

// Says by locks of the exporter's file, far behind its memory, which processes have which piece open. A lock ends with its
// process.
class OpenMarks {
 public:
  static void add(int file, uint64_t number) {
    struct flock lock = place_of(number, F_RDLCK);
    lock.l_start += getpid();
    lock.l_len = 1;
    if (fcntl(file, F_OFD_SETLK, &lock) != 0) std::abort();
  }
  // A process that has the piece open and is not ending; 0: none. Waits for those that end.
  static int find(int file, uint64_t number) {
    for (;; usleep(1000)) {
      struct flock lock = place_of(number, F_WRLCK);
      if (fcntl(file, F_OFD_GETLK, &lock) != 0) std::abort();
      if (lock.l_type == F_UNLCK) return 0;
      const auto process = static_cast<int>(lock.l_start % kMostProcesses);
      if (!is_ending(process)) return process;
    }
  }

 private:
  static constexpr off_t kMostProcesses = off_t{1} << 22, kBehindMemory = off_t{1} << 40;
  static struct flock place_of(uint64_t number, short type) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = kBehindMemory + static_cast<off_t>(number) * kMostProcesses;
    lock.l_len = kMostProcesses;
    return lock;
  }
};

// Memory of other processes that this process has mapped. Each piece has a separate address range.
class Imports {
 public:
  // Null if the process is gone.
  char *open(const MockHandle &handle) {
    const uint64_t begin = handle.offset / kPage * kPage;
    auto &[base, bytes, file] = opened_[{handle.process, handle.number}];
    if (base == nullptr) {
      bytes = (handle.offset + handle.bytes - begin + kPage - 1) / kPage * kPage;
      char path[64];
      std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
      const int fd = ::open(path, O_RDWR | O_CLOEXEC);
      if (fd < 0) return nullptr;
      void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(begin));
      if (at == MAP_FAILED) {
        ::close(fd);
        return nullptr;
      }
      OpenMarks::add(fd, handle.number);
      base = static_cast<char *>(at);
      file = fd;
    }
    return base + (handle.offset - begin);
  }
  void close(const char *at) {
    for (auto one = opened_.begin(); one != opened_.end(); ++one) {
      const auto [base, bytes, file] = one->second;
      if (at < base || at >= base + bytes) continue;
      munmap(base, bytes);
      ::close(file);
      opened_.erase(one);
      return;
    }
  }

 private:
  static constexpr uint64_t kPage = 4096;
  struct Opened {
    char *base = nullptr;
    size_t bytes = 0;
    int file = -1;
  };
  std::map<std::pair<int32_t, uint64_t>, Opened> opened_;
};

}  // namespace mock
