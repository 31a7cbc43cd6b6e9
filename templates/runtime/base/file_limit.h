// Guards calls that grow a file. The limit on file sizes (RLIMIT_FSIZE) also applies to shared memory. Exceeding it raises
// SIGXFSZ, which ends a program that does not handle it. Under this guard the call fails with an ordinary error (EFBIG)
// instead.
#pragma once
#include <signal.h>
#include <time.h>

namespace collc {

// Calls `body`, which may grow a file, and returns its result. Blocks SIGXFSZ in this thread meanwhile, and discards the
// signal that the call may raise. A signal that was pending before stays pending.
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
