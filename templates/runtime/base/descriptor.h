// File descriptors that do not survive a fork, and the start of the library's threads.
//
// Other ranks detect the end of a process by the end of its connections. A forked child that keeps running would hide it,
// because CLOEXEC closes descriptors only in exec. Therefore a handler of pthread_atfork closes them all in the child before
// fork() returns there. Children made without such handlers call exec at once (vfork, posix_spawn), or their authors know the
// consequences (a bare clone(2), _Fork).
#pragma once
#include <cerrno>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status.h"

namespace collc {

// Owns a file descriptor. In a forked child it is empty, whatever it was in the parent. Different threads may use different
// objects at the same time; one object is not thread-safe.
class Descriptor {
 public:
  // Returns an owner of the descriptor that `make` returns; an empty one, with errno set, if `make` returns -1. Holds a lock
  // that forks wait for until the descriptor is registered, so `make` must not block.
  template <class Make>
  static Descriptor open(Make make) {
    Descriptor made;
    const std::lock_guard<std::mutex> lock(mutex());
    const int fd = make();
    const int error = errno;
    if (fd >= 0) made.note(fd);
    errno = error;
    return made;
  }

  Descriptor() = default;
  ~Descriptor() { reset(); }
  Descriptor(Descriptor &&other) noexcept : slot_(std::exchange(other.slot_, nullptr)), serial_(other.serial_) {}
  Descriptor &operator=(Descriptor &&other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(serial_, other.serial_);
    other.reset();
    return *this;
  }

  // Returns the descriptor; -1 if the object is empty.
  int get() const;
  // Returns whether the number still refers to the file that was opened. Some programs close every descriptor that they find;
  // the number may then refer to another file. reset() does not close such a number.
  bool intact() const;
  explicit operator bool() const { return get() >= 0; }
  void reset();

 private:
  struct Slot;
  struct Registry;
  static Registry &registry();
  static std::mutex &mutex();
  void note(int fd);

  Slot *slot_ = nullptr;
  // the slot's serial number when it was assigned to this object; another value there means that the slot has a new owner
  uint64_t serial_ = 0;
};

// Starts a thread that runs `body` with all signals blocked, so that signals go to the application's threads.
Status start_thread(std::function<void()> body, std::thread *thread);

}  // namespace collc
