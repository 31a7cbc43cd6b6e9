// Descriptors of this process alone, and threads of the library.
//
// Others see the end of a process by the end of its connections, which a forked child that goes on would hide: CLOEXEC only
// helps where the child calls exec. So a child closes these first thing, in a handler of pthread_atfork. Children that come
// about without such handlers call exec at once (vfork, posix_spawn), or know what they do (a bare clone(2), _Fork).
#pragma once
#include <cerrno>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status.h"

namespace collc {

// Owns one. In a forked child it is empty, whatever it was before.
class Descriptor {
 public:
  // Owns the descriptor that `make` returns, or -1 with errno. Forks wait until it is registered, so `make` must not block.
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

  // -1 if there is none.
  int get() const;
  // False if somebody else has closed it, as programs do that close all they find; its number may mean something else by now,
  // which is left alone.
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
  uint64_t serial_ = 0;  // of what the slot holds: it may hold something else by now
};

// Runs `body` in a thread that takes no signals: those are for the application's own.
Status start_thread(std::function<void()> body, std::thread *thread);

}  // namespace collc
