/* Four ranks; the last one is suspended in the middle of a split, when it has said what it has to say and has not read what
 * the others say. These go on: they make and destroy many parts of their own, by shrinks, before it wakes up.
 * Arguments: processes, or threads; 4; and "mistake": one of three gives a list for a shrink that names a rank which is not
 * there, or itself; the others give one without it, and hear of the mistake at once.
 */
#include "launch.h"

#include <sys/types.h>
#include <sys/syscall.h>
#include <time.h>

enum { SHRINKS = 20 };

static int slow_id, holds;
static double hold_from;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void rest(double seconds) {
  struct timespec time;
  time.tv_sec = (time_t)seconds;
  time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
  syscall(SYS_nanosleep, &time, NULL);
}

/* Instead of the C library's. Who makes an id needs it: the others wait for the id meanwhile. */
ssize_t getrandom(void *data, size_t size, unsigned flags) {
  if (slow_id) rest(0.5);
  slow_id = 0;
  return syscall(SYS_getrandom, data, size, flags);
}

/* The nap between two looks for the others' words. */
int nanosleep(const struct timespec *time, struct timespec *left) {
  if (holds && now() > hold_from) {
    holds = 0;
    rest(3);
  }
  return (int)syscall(SYS_nanosleep, time, left);
}

static size_t sum_of(ncclComm_t comm) {
  int one = 1, size = 0;
  check(ncclCommCount(comm, &size), "ncclCommCount");
  check(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
  require(one == size, "a sum");
  return 1;
}

static size_t suspended(int rank, ncclUniqueId id) {
  ncclComm_t comm = NULL, part = NULL;
  int excluded = 3, i;
  size_t checked = 0;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  checked += sum_of(comm);
  slow_id = rank == 0;
  holds = rank == 3;
  hold_from = now() + 0.25;
  check(ncclCommSplit(comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : 0, rank, &part, NULL), "ncclCommSplit");
  require((part == NULL) == (rank == 3), "who is in the part");
  require(!holds, "the last rank was suspended");
  if (part != NULL) {
    checked += sum_of(part);
    check(ncclCommDestroy(part), "ncclCommDestroy");
  }
  for (i = 0; i < SHRINKS && rank != 3; ++i) {
    part = NULL;
    check(ncclCommShrink(comm, &excluded, 1, &part, NULL, NCCL_SHRINK_DEFAULT), "ncclCommShrink");
    checked += sum_of(part);
    check(ncclCommDestroy(part), "ncclCommDestroy");
  }
  checked += sum_of(comm);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  return checked;
}

static size_t mistaken(int rank, ncclUniqueId id) {
  ncclComm_t comm = NULL, part = NULL;
  /* Without rank 3, which is not called for; a rank that is not there; itself. */
  int wrong[3][2] = {{3, 99}, {3, -1}, {3, 2}}, right = 3, i;
  double start;
  ncclResult_t result;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (i = 0; i < 3; ++i) {
    sum_of(comm);
    start = now();
    if (rank == 2)
      result = ncclCommShrink(comm, wrong[i], 2, &part, NULL, NCCL_SHRINK_DEFAULT);
    else if (rank != 3)
      result = ncclCommShrink(comm, &right, 1, &part, NULL, NCCL_SHRINK_DEFAULT);
    else
      continue;
    require(result == (i == 2 ? ncclInvalidUsage : ncclInvalidArgument), "the result of a list with a mistake");
    require(part == NULL && now() - start < 5, "it is known at once");
    require(strstr(ncclGetLastError(NULL), i == 2 ? "rank 2 is excluded" : "excluded rank") != NULL, "what is wrong with it");
  }
  sum_of(comm);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  return 1;
}

int main(int argc, char **argv) {
  const int mistake = argc == 4 && strcmp(argv[3], "mistake") == 0;
  nranks = argc >= 3 ? atoi(argv[2]) : 0;
  /* The suspended one is a process: its naps are those of all its threads. */
  if (nranks != 4 || (argc == 4 && !mistake)) return 2;
  if (mistake && strcmp(argv[1], "threads") == 0)
    printf("%zu elements right\n", run_threads(mistaken));
  else
    printf("%zu elements right\n", run_processes(mistake ? mistaken : suspended));
  return 0;
}
