/* A child is forked off again and again while other threads allocate and free buffers of ncclMemAlloc. It allocates and frees
 * some of its own, and one that it inherited; no lock that a thread of its parent held stands in its way. Prints how many
 * children have.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { CHILDREN = 400, THREADS = 3, SECONDS = 20 };
static int ended; /* read and written with __atomic */

static void *come_and_go(void *unused) {
  while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
    void *memory = NULL;
    check(ncclMemAlloc(&memory, 4096), "ncclMemAlloc");
    check(ncclMemFree(memory), "ncclMemFree");
  }
  return unused;
}

static int in_child(void *inherited) {
  void *own = NULL;
  alarm(SECONDS);
  return ncclMemAlloc(&own, 4096) != ncclSuccess || ncclMemFree(own) != ncclSuccess || ncclMemFree(inherited) != ncclSuccess;
}

int main(void) {
  pthread_t threads[THREADS];
  void *inherited = NULL;
  int good = 0, i;
  check(ncclMemAlloc(&inherited, 4096), "ncclMemAlloc");
  for (i = 0; i < THREADS; ++i) require(pthread_create(&threads[i], NULL, come_and_go, NULL) == 0, "a thread");
  for (i = 0; i < CHILDREN; ++i) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) _exit(in_child(inherited));
    require(waitpid(child, &status, 0) == child && status == 0, "a child that allocates and frees");
    ++good;
  }
  __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
  for (i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  printf("%d children\n", good);
  return 0;
}
