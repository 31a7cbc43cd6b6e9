// The limit of the size of files (RLIMIT_FSIZE) also holds for shared memory: exceeding it raises SIGXFSZ, which ends
// a program that does not expect it. Here it becomes an ordinary error.
#pragma once
#include <signal.h>
#include <time.h>

namespace collc {

// Returns the result of `body`, which may grow a file. Blocks the SIGXFSZ that this thread may get for it, and discards it.
template <class Body>
auto within_file_limit(Body body) {
  sigset_t exceeded, before, waiting;
  sigemptyset(&exceeded);
  sigaddset(&exceeded, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &exceeded, &before);
  sigemptyset(&waiting);
  sigpending(&waiting);
  const auto result = body();
  const timespec now{0, 0};
  if (sigismember(&waiting, SIGXFSZ) == 0) sigtimedwait(&exceeded, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace collc
