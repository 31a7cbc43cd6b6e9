/* Two threads call one communicator at once: one of them is refused, and the other's call is right. Rank 0 is called by two
 * threads while rank 1 stays away, so a thread that returns was refused; then rank 1 comes. Argument: how they call (plain,
 * group, send or split), or how the call of the other thread ends (abort or revoke).
 */
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { THREADS = 2, ELEMENTS = 4000 };

typedef struct {
  float input[ELEMENTS], output[ELEMENTS];
  ncclComm_t part;
  ncclResult_t result;
  char text[640];
} Call;

static const char *way;
static ncclComm_t comms[2];
static Call calls[THREADS];
static sem_t returned;
static int first = -1; /* the thread that returns first */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t open_groups;

static ncclResult_t make(Call *call, int rank, ncclComm_t comm) {
  if (strcmp(way, "split") == 0) return ncclCommSplit(comm, 0, rank, &call->part, NULL);
  if (strcmp(way, "send") == 0) {
    return rank == 0 ? ncclRecv(call->output, ELEMENTS, ncclFloat32, 1, comm, NULL)
                     : ncclSend(call->input, ELEMENTS, ncclFloat32, 0, comm, NULL);
  }
  return ncclAllReduce(call->input, call->output, ELEMENTS, ncclFloat32, ncclSum, comm, NULL);
}

static void fill(Call *call, float value) {
  int i;
  for (i = 0; i < ELEMENTS; ++i) call->input[i] = value, call->output[i] = -1;
}

static void *caller(void *argument) {
  const int number = (int)(size_t)argument;
  Call *mine = &calls[number];
  if (strcmp(way, "group") == 0) {
    check(ncclGroupStart(), "ncclGroupStart");
    check(make(mine, 0, comms[0]), "a call in an open group");
    pthread_barrier_wait(&open_groups); /* both groups are open and hold a call */
    mine->result = ncclGroupEnd();
  } else {
    mine->result = make(mine, 0, comms[0]);
  }
  snprintf(mine->text, sizeof mine->text, "%s", ncclGetLastError(NULL));
  pthread_mutex_lock(&mutex);
  if (first < 0) first = number;
  pthread_mutex_unlock(&mutex);
  sem_post(&returned);
  return NULL;
}

static void wait_for_return(const char *what) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 60;
  require(sem_timedwait(&returned, &until) == 0, what);
}

static void check_output(const Call *call, float expected, const char *what) {
  int i;
  for (i = 0; i < ELEMENTS; ++i) require(call->output[i] == expected, what);
}

/* Both ranks in a group of this thread, which is neither of the others. */
static void all_reduce_again(void) {
  static Call again[2];
  int r;
  check(ncclGroupStart(), "ncclGroupStart");
  for (r = 0; r < 2; ++r) {
    fill(&again[r], (float)(1 + r));
    check(ncclAllReduce(again[r].input, again[r].output, ELEMENTS, ncclFloat32, ncclSum, comms[r], NULL), "a later call");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (r = 0; r < 2; ++r) check_output(&again[r], 3, "a later sum");
}

static void ask(void) {
  ncclResult_t state = ncclInternalError;
  int value = -1;
  check(ncclCommGetAsyncError(comms[0], &state), "ncclCommGetAsyncError");
  check(state, "the state");
  check(ncclCommCount(comms[0], &value), "ncclCommCount");
  require(value == 2, "two ranks");
  check(ncclCommUserRank(comms[0], &value), "ncclCommUserRank");
  require(value == 0, "rank 0");
  /* This thread had no error: it hears of the other thread's. */
  require(strstr(ncclGetLastError(comms[0]), "another thread is in a call") != NULL, "the refusal");
}

int main(int count, char **arguments) {
  static Call other;
  pthread_t threads[THREADS];
  int i;
  require(count == 2, "an argument");
  way = arguments[1];
  sem_init(&returned, 0, 0);
  pthread_barrier_init(&open_groups, NULL, THREADS);
  check(ncclCommInitAll(comms, 2, NULL), "ncclCommInitAll");
  for (i = 0; i < THREADS; ++i) {
    fill(&calls[i], 1);
    require(pthread_create(&threads[i], NULL, caller, (void *)(size_t)i) == 0, "a thread");
  }
  wait_for_return("no thread was refused");
  require(calls[first].result == ncclInvalidUsage, "ncclInvalidUsage");
  require(strstr(calls[first].text, "another thread is in a call") != NULL, calls[first].text);
  check_output(&calls[first], -1, "the refused call changed its buffer");
  ask();
  if (strcmp(way, "abort") == 0) check(ncclCommAbort(comms[0]), "ncclCommAbort");
  if (strcmp(way, "revoke") == 0) check(ncclCommRevoke(comms[0], 0), "ncclCommRevoke");
  fill(&other, 2);
  if (strcmp(way, "abort") == 0 || strcmp(way, "revoke") == 0) {
    wait_for_return("the call did not end");
    require(calls[!first].result != ncclSuccess, "a call that was ended");
  } else {
    check(make(&other, 1, comms[1]), "rank 1");
    wait_for_return("the other call did not end");
    check(calls[!first].result, "the other call");
    if (strcmp(way, "split") != 0) check_output(&calls[!first], strcmp(way, "send") == 0 ? 2 : 3, "the other call's result");
    all_reduce_again();
    check(ncclCommDestroy(comms[0]), "ncclCommDestroy");
  }
  for (i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  puts("one refused");
  return 0;
}
