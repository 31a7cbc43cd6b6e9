// The limit of the size of files (RLIMIT_FSIZE) also holds for shared memory: whoever would exceed it gets SIGXFSZ, which ends
// a program that does not expect it. Here it is an error like any other.
#pragma once
#include <signal.h>
#include <time.h>

namespace collc {

// The result of `body`, which may make a file larger; the signal that it may cause, which is this thread's, is taken away.
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
