// Liveness marks: a process holds the marks of RANKS ranks (first argument) and ends in the way of the second argument. Another
// process prints how many ranks it saw alive before that, and dead after it.
//
// The ends: "kill", "exit", "exec", "closed" (closes every descriptor, then kill), "orphan" (a forked child outlives it), "stop"
// (not an end), "child" (only a forked child ends), "thread" (only the thread that took the marks ends), "release" (gives up every
// second mark, takes some again, and is killed).
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "control/liveness.h"

using namespace collc;

namespace {

uint32_t many;
LivenessMark *marks;
std::atomic<uint32_t> *stage;  // 0: nothing held; 1: all are; 2: go on

void require(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::_Exit(1);
}

void acquire_all() {
  for (uint32_t i = 0; i < many; ++i) {
    bool taken = false;
    require(acquire(marks[i], &taken).ok() && !taken, "a mark is acquired");
  }
  bool taken = false;
  require(acquire(marks[0], &taken).ok() && taken, "and not twice");
}

void release_some() {
  for (uint32_t i = 0; i < many; i += 2) release(marks[i]);
  for (uint32_t i = 0; i < many; i += 4) {
    bool taken = false;
    require(acquire(marks[i], &taken).ok() && !taken, "a mark is acquired again");
  }
}

void wait_for(uint32_t wanted) {
  while (stage->load() != wanted) usleep(500);
}

[[noreturn]] void play(const char *end) {
  const auto is = [end](const char *what) { return std::strcmp(end, what) == 0; };
  std::thread(acquire_all).join();  // the thread that acquires them may end
  if (is("release")) release_some();
  if (is("closed"))
    for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
  if (is("child") || is("orphan")) {
    const pid_t child = fork();
    if (child == 0) {
      bool taken = false;
      // A forked child can take marks, but holds none of its parent's.
      require(acquire(marks[many], &taken).ok() && !taken, "a child's mark");
      if (is("child")) _exit(0);
      for (int descriptor = 0; descriptor < 3; ++descriptor) close(descriptor);  // nobody reads its output
      alarm(20);
      pause();
    }
    if (is("child")) waitpid(child, nullptr, 0);
  }
  stage->store(1);
  wait_for(2);
  if (is("exit")) std::exit(0);
  if (is("exec")) execlp("sleep", "sleep", "30", static_cast<char *>(nullptr));
  pause();
  std::_Exit(1);
}

uint32_t count_ended() {
  uint32_t ended = 0;
  for (uint32_t i = 0; i < many; ++i) ended += has_ended(marks[i]);
  return ended;
}

}  // namespace

int main(int, char **argv) {
  many = static_cast<uint32_t>(std::atoi(argv[1]));
  const auto is = [argv](const char *what) { return std::strcmp(argv[2], what) == 0; };
  void *memory =
      mmap(nullptr, (many + 1) * sizeof(LivenessMark) + 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "memory");
  stage = static_cast<std::atomic<uint32_t> *>(memory);
  marks = reinterpret_cast<LivenessMark *>(static_cast<char *>(memory) + 64);
  const pid_t holder = fork();
  if (holder == 0) play(argv[2]);
  wait_for(1);
  const uint32_t before = count_ended();
  stage->store(2);
  const bool lives_on = is("stop") || is("child") || is("thread");
  if (is("stop")) kill(holder, SIGSTOP);
  if (is("kill") || is("closed") || is("orphan") || is("release")) kill(holder, SIGKILL);
  // The end of a process can be waited for. An exec, and the end of only a thread or a child, cannot.
  if (is("exec") || lives_on) usleep(300000);
  if (!lives_on && !is("exec")) waitpid(holder, nullptr, 0);
  for (int looks = 0; is("exec") && count_ended() < many && looks < 20000; ++looks) usleep(1000);
  std::printf("%u %u\n", many - before, count_ended());
  kill(holder, SIGKILL);
  return 0;
}
