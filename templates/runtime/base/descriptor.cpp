#include "base/descriptor.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>
#include <system_error>

namespace collc {

struct Descriptor::Slot {
  std::atomic<int> fd{-1};
  std::atomic<uint64_t> serial{0};  // of the owner; 0: the slot is free
  dev_t device = 0;                 // device and inode of the open file, to see whether the number still refers to it
  ino_t file = 0;
  Slot *next = nullptr;

  bool intact() const {
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_dev == device && found.st_ino == file;
  }
};

// List of all slots. Slots are never freed. The handler in a forked child touches nothing else, because the child's heap may
// be in the middle of an operation.
struct Descriptor::Registry {
  std::mutex mutex;
  std::atomic<Slot *> first{nullptr};
  uint64_t serials = 0;
};

Descriptor::Registry &Descriptor::registry() {
  static auto *const only = new Registry;  // never destroyed, because threads of the library may outlive static objects
  static const int registered = pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                                               [] {
                                                 for (Slot *at = registry().first; at != nullptr; at = at->next) {
                                                   if (at->serial.exchange(0) != 0 && at->intact()) ::close(at->fd.load());
                                                 }
                                                 registry().mutex.unlock();
                                               });
  if (registered != 0) throw std::bad_alloc();
  return *only;
}

std::mutex &Descriptor::mutex() { return registry().mutex; }

void Descriptor::note(int fd) {
  Registry &all = registry();
  Slot *slot = all.first;
  while (slot != nullptr && slot->serial != 0) slot = slot->next;
  if (slot == nullptr) {
    slot = new (std::nothrow) Slot;
    if (slot == nullptr) {
      ::close(fd);
      throw std::bad_alloc();
    }
    slot->next = all.first;
    all.first = slot;
  }
  struct stat found = {};
  fstat(fd, &found);
  slot->device = found.st_dev;
  slot->file = found.st_ino;
  slot->fd = fd;
  slot->serial = serial_ = ++all.serials;
  slot_ = slot;
}

bool Descriptor::intact() const { return get() >= 0 && slot_->intact(); }

int Descriptor::get() const { return slot_ != nullptr && slot_->serial == serial_ ? slot_->fd.load() : -1; }

void Descriptor::reset() {
  Slot *const slot = std::exchange(slot_, nullptr);
  if (slot == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex());
  if (slot->serial != serial_) return;  // the object comes from the parent process, where the slot had this owner
  if (slot->intact()) ::close(slot->fd);
  slot->serial = 0;
}

Status start_thread(std::function<void()> body, std::thread *thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error &error) {
    status = fail(ncclSystemError, "cannot start a thread: %s", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace collc
