/* Communicators that one thread destroys while others have them from their last call, or are in a call. Calls end by being
 * refused, and when they have been nothing of the communicator is left: no thread keeps one alive because it does
 * nothing. Argument, or the second one: rounds.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { CALLERS = 2, ELEMENTS = 64 };

static ncclComm_t comm;
static pthread_barrier_t made, refused;
static atomic_int over;

static ncclComm_t alone(void) {
  ncclUniqueId id;
  ncclComm_t one = NULL;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&one, 1, id, 0), "ncclCommInitRank");
  return one;
}

static ncclResult_t call(ncclComm_t one) {
  float input[ELEMENTS], output[ELEMENTS] = {0};
  ncclResult_t result;
  int i;
  for (i = 0; i < ELEMENTS; ++i) input[i] = (float)i;
  result = ncclAllReduce(input, output, ELEMENTS, ncclFloat32, ncclSum, one, NULL);
  if (result == ncclSuccess) require(memcmp(input, output, sizeof input) == 0, "the sum of one");
  return result;
}

/* How many pieces of shared memory of communicators this process has mapped. */
static int pieces(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  int found = 0;
  require(maps != NULL, "/proc/self/maps");
  while (fgets(line, sizeof line, maps) != NULL) found += strstr(line, "memfd:collc") != NULL;
  fclose(maps);
  return found;
}

/* Only one of them calls: a communicator takes the calls of one thread at a time. All ask it for something. */
static void *caller(void *argument) {
  const int calls = argument != NULL;
  for (;;) {
    ncclResult_t result = ncclSuccess;
    int ranks = 0;
    pthread_barrier_wait(&made);
    if (atomic_load(&over)) return NULL;
    while (result != ncclInvalidArgument) result = calls ? call(comm) : ncclCommCount(comm, &ranks);
    pthread_barrier_wait(&refused);
  }
}

/* Calls, and then nothing until all communicators are gone. */
static void *idler(void *argument) {
  check(call(argument), "a call");
  require(call((ncclComm_t)&made) == ncclInvalidArgument, "no communicator");
  require(call(NULL) == ncclInvalidArgument, "no communicator");
  check(call(argument), "a call");
  pthread_barrier_wait(&made);
  pthread_barrier_wait(&refused);
  return NULL;
}

static void destroyed_in_calls(int rounds) {
  pthread_t threads[CALLERS];
  int i, round;
  for (i = 0; i < CALLERS; ++i) require(pthread_create(&threads[i], NULL, caller, i == 0 ? &comm : NULL) == 0, "a thread");
  for (round = 0; round < rounds; ++round) {
    comm = alone();
    require(pieces() > 0, "shared memory");
    pthread_barrier_wait(&made);
    usleep((useconds_t)(round % 50));
    check(round % 2 ? ncclCommDestroy(comm) : ncclCommAbort(comm), "the end");
    pthread_barrier_wait(&refused);
    require(pieces() == 0, "nothing is left of a communicator that was destroyed in a call");
  }
  atomic_store(&over, 1);
  pthread_barrier_wait(&made);
  for (i = 0; i < CALLERS; ++i) pthread_join(threads[i], NULL);
}

#ifndef __SANITIZE_THREAD__ /* which does not take threads of a forked child */
static void *in_child(void *argument) {
  require(call(comm) == ncclInvalidUsage, "the parent's");
  check(call(argument), "a call");
  check(ncclCommDestroy(argument), "ncclCommDestroy");
  return NULL;
}
#endif

/* Which has none of the threads that keep its parent's. */
static void forked_child(void) {
#ifndef __SANITIZE_THREAD__
  pthread_t one;
  int status = 1;
  const pid_t child = fork();
  if (child == 0) {
    require(pthread_create(&one, NULL, in_child, alone()) == 0, "a thread");
    pthread_join(one, NULL);
    in_child(alone());
    _exit(0);
  }
  require(waitpid(child, &status, 0) == child && status == 0, "a forked child");
#endif
}

static void destroyed_beside_idle_threads(void) {
  pthread_t threads[CALLERS];
  ncclComm_t own[CALLERS];
  int i;
  for (i = 0; i < CALLERS; ++i) require(pthread_create(&threads[i], NULL, idler, own[i] = alone()) == 0, "a thread");
  pthread_barrier_wait(&made);
  comm = own[0];
  forked_child();
  for (i = 0; i < CALLERS; ++i) check(ncclCommDestroy(own[i]), "ncclCommDestroy");
  require(pieces() == 0, "nothing is left of a communicator whose thread does nothing");
  pthread_barrier_wait(&refused);
  for (i = 0; i < CALLERS; ++i) pthread_join(threads[i], NULL);
}

int main(int count, char **arguments) {
  const int rounds = count > 1 ? atoi(arguments[count - 1]) : 0;
  pthread_barrier_init(&made, NULL, CALLERS + 1);
  pthread_barrier_init(&refused, NULL, CALLERS + 1);
  destroyed_beside_idle_threads();
  destroyed_in_calls(rounds);
  puts("nothing left");
  return 0;
}
