/* A child is forked off again and again while other threads look communicators up, and with the argument "creates" make and
 * destroy some. It asks about a communicator of its parent, which it is refused, and makes one of its own that it calls and
 * destroys; no lock that a thread of its parent held stands in its way. Prints how many children have.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 3, SECONDS = 200, LOOKS = 150, MAKES = 40 };
static int ended; /* read and written with __atomic */
static ncclComm_t two[2];

static ncclComm_t make(void) {
  ncclComm_t made = NULL;
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&made, 1, id, 0), "ncclCommInitRank");
  return made;
}

/* In turn, so that none is what the thread has found last. */
static void *look(void *unused) {
  int i, count = 0;
  for (i = 0; !__atomic_load_n(&ended, __ATOMIC_RELAXED); i ^= 1) check(ncclCommCount(two[i], &count), "ncclCommCount");
  return unused;
}

static void *come_and_go(void *unused) {
  while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) check(ncclCommDestroy(make()), "ncclCommDestroy");
  return unused;
}

static int in_child(void) {
  int count = 0;
  float element = 7;
  ncclComm_t own;
  alarm(SECONDS);
  if (ncclCommCount(two[0], &count) != ncclInvalidUsage || ncclCommCount(two[1], &count) != ncclInvalidUsage) return 1;
  own = make();
  if (ncclAllReduce(&element, &element, 1, ncclFloat, ncclSum, own, NULL) != ncclSuccess || element != 7) return 2;
  return ncclCommDestroy(own) != ncclSuccess;
}

int main(int argc, char **argv) {
  const int creates = argc > 1 && strcmp(argv[1], "creates") == 0;
  const int children = creates ? MAKES : LOOKS;
  pthread_t threads[THREADS];
  int good = 0, i;
  two[0] = make();
  two[1] = make();
  for (i = 0; i < THREADS; ++i) require(pthread_create(&threads[i], NULL, creates ? come_and_go : look, NULL) == 0, "a thread");
  for (i = 0; i < children; ++i) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) _exit(in_child());
    require(waitpid(child, &status, 0) == child && status == 0, "a child that calls");
    ++good;
  }
  __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
  for (i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  check(ncclCommDestroy(two[0]), "ncclCommDestroy");
  check(ncclCommDestroy(two[1]), "ncclCommDestroy");
  printf("%d children\n", good);
  return 0;
}
