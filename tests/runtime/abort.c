/* Rank 0 aborts in the middle of large calls and unmaps its buffers at once: nobody may read or write them then, and
 * nobody's call may succeed with what they held, or without what the others should have brought. Many rounds, so that
 * the abort meets every moment of a call. Prints how many calls succeeded before. With "memalloc" as a third argument
 * the buffers come from ncclMemAlloc: they are overwritten and freed.
 */
#include <sys/mman.h>
#include <time.h>

#include "launch.h"

enum { ROUNDS = 30 };
static const size_t COUNT = 1 << 18; /* floats that a rank gives to an all_gather */

typedef struct {
  ncclComm_t comm;
  long nanoseconds;
} Delay;

static void *abort_soon(void *argument) {
  const Delay *delay = argument;
  struct timespec time = {0, delay->nanoseconds};
  nanosleep(&time, NULL);
  check(ncclCommAbort(delay->comm), "ncclCommAbort");
  return NULL;
}

static int from_memalloc;

static float *pages(size_t count) {
  if (from_memalloc) {
    void *buffer = NULL;
    check(ncclMemAlloc(&buffer, count * sizeof(float)), "ncclMemAlloc");
    return buffer;
  }
  void *memory = mmap(NULL, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "memory");
  return memory;
}

static void give_back(float *buffer, size_t count) {
  if (!from_memalloc) {
    munmap(buffer, count * sizeof *buffer);
    return;
  }
  memset(buffer, 0xff, count * sizeof *buffer);
  check(ncclMemFree(buffer), "ncclMemFree");
}

static struct {
  pthread_barrier_t together;
  ncclUniqueId id;
} *shared;

static size_t body(int rank, ncclUniqueId unused) {
  size_t calls = 0, i;
  int round, r;
  (void)unused;
  for (round = 0; round < ROUNDS; ++round) {
    ncclComm_t comm = NULL;
    const int gathers = round / 2 % 2 == 0;
    const size_t most = 4 * COUNT * (size_t)nranks, count = gathers ? COUNT : most;
    float *input = pages(most), *output = pages(most);
    pthread_t aborter;
    Delay delay;
    ncclResult_t result = ncclSuccess;
    if (rank == 0) check(ncclGetUniqueId(&shared->id), "ncclGetUniqueId");
    pthread_barrier_wait(&shared->together);
    check(ncclCommInitRank(&comm, nranks, shared->id, rank), "ncclCommInitRank");
    for (i = 0; i < most; ++i) input[i] = (float)(rank + 1);
    pthread_barrier_wait(&shared->together);
    delay.comm = comm;
    delay.nanoseconds = round % 2 ? 50000L * round : 4000000L * round;
    if (rank == 0) require(pthread_create(&aborter, NULL, abort_soon, &delay) == 0, "thread");
    while (result == ncclSuccess) {
      memset(output, 0, most * sizeof *output);
      if (gathers)
        result = ncclAllGather(input, output, count, ncclFloat32, comm, NULL);
      else
        result = ncclAllReduce(input, output, count, ncclFloat32, ncclSum, comm, NULL);
      if (result != ncclSuccess) break;
      ++calls;
      for (r = 0; gathers && r < nranks; ++r)
        for (i = 0; i < COUNT; i += 4099)
          require(output[(size_t)r * COUNT + i] == (float)(r + 1), "what a call that succeeded gathered");
      for (i = 0; !gathers && i < count; i += 4099)
        require(output[i] == (float)(nranks * (nranks + 1) / 2), "what a call that succeeded reduced");
    }
    give_back(input, most);
    give_back(output, most);
    if (rank == 0) pthread_join(aborter, NULL);
    if (rank != 0) check(ncclCommDestroy(comm), "ncclCommDestroy");
    pthread_barrier_wait(&shared->together);
  }
  return calls;
}

int main(int argc, char **argv) {
  pthread_barrierattr_t for_processes;
  from_memalloc = argc == 4 && strcmp(argv[3], "memalloc") == 0;
  if (argc < 3 || argc > 4 || (nranks = atoi(argv[2])) < 2 || nranks > MOST_RANKS) return 2;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(shared != MAP_FAILED, "memory");
  pthread_barrierattr_init(&for_processes);
  pthread_barrierattr_setpshared(&for_processes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->together, &for_processes, (unsigned)nranks);
  printf("%lu calls\n", (unsigned long)(strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body)));
  return 0;
}
