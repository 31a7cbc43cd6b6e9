/* Calls that come when the thread's own variables are gone already: an exit handler, and a destructor of thread-specific data,
 * destroy two communicators each, after the last call was one that failed.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "wrong: %s: %s\n", what, ncclGetLastError(NULL));
  _Exit(1);
}
static void check(ncclResult_t result, const char *what) { require(result == ncclSuccess, what); }

typedef struct {
  ncclComm_t first, second;
} Two;

static Two of_main;

static ncclComm_t alone(void) {
  ncclUniqueId id;
  ncclComm_t made = NULL;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  check(ncclCommInitRank(&made, 1, id, 0), "ncclCommInitRank");
  return made;
}

static void begin(Two *two) {
  float value = 3, result = 0;
  two->first = alone(), two->second = alone();
  check(ncclAllReduce(&value, &result, 1, ncclFloat32, ncclSum, two->first, NULL), "ncclAllReduce");
  require(result == 3, "the sum of one");
  require(ncclAllReduce(&value, &result, 1, ncclFloat32, ncclSum, NULL, NULL) == ncclInvalidArgument, "no communicator");
}

static void end(void *argument) {
  Two *two = argument;
  check(ncclCommDestroy(two->second), "ncclCommDestroy");
  require(ncclCommDestroy(two->second) == ncclInvalidArgument, "destroyed twice");
  require(strstr(ncclGetLastError(NULL), "does not exist") != NULL, "the reason");
  check(ncclCommDestroy(two->first), "ncclCommDestroy");
  puts("destroyed");
}

static void end_main(void) { end(&of_main); }

static void *thread(void *argument) {
  static Two own;
  pthread_setspecific(*(pthread_key_t *)argument, &own);
  begin(&own);
  check(ncclGroupStart(), "ncclGroupStart"); /* and leaves it open */
  return NULL;
}

int main(void) {
  pthread_key_t key;
  pthread_t other;
  require(pthread_key_create(&key, end) == 0 && pthread_create(&other, NULL, thread, &key) == 0, "a thread");
  pthread_join(other, NULL);
  begin(&of_main);
  return atexit(end_main);
}
