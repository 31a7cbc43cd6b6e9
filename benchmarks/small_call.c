// Calls of one thread that drives all ranks, from a library named at run time: small_call LIB CALLS BYTES [RANKS].
// Prints the nanoseconds of a call, as the median over batches.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST_RANKS 64
#define BATCHES 25

static void *library;

static void *symbol(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

static void check(ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: result %d\n", what, (int)result);
  exit(1);
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int ascending(const void *one, const void *other) {
  const double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

int main(int argc, char **argv) {
  const int calls = argc > 2 ? atoi(argv[2]) : 0, bytes = argc > 3 ? atoi(argv[3]) : 0;
  const int ranks = argc > 4 ? atoi(argv[4]) : 2;
  if (calls < 0 || bytes < 4 || ranks < 1 || ranks > MOST_RANKS) {
    fprintf(stderr, "usage: %s LIB CALLS BYTES [RANKS]\n", argv[0]);
    return 2;
  }
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  ncclResult_t (*const init)(ncclComm_t *, int, const int *) = symbol("ncclCommInitAll");
  ncclResult_t (*const start)(void) = symbol("ncclGroupStart");
  ncclResult_t (*const end)(void) = symbol("ncclGroupEnd");
  ncclResult_t (*const destroy)(ncclComm_t) = symbol("ncclCommDestroy");
  ncclResult_t (*const all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) =
      symbol("ncclAllReduce");
  ncclComm_t comms[MOST_RANKS];
  float *buffers[MOST_RANKS][2];
  check(init(comms, ranks, NULL), "ncclCommInitAll");
  for (int r = 0; r < ranks; ++r)
    for (int i = 0; i < 2; ++i) buffers[r][i] = calloc(1, (size_t)bytes);
  double times[BATCHES];
  for (int batch = 0; batch < BATCHES; ++batch) {
    const double begin = now_ns();
    for (int call = 0; call < calls; ++call) {
      check(start(), "ncclGroupStart");
      for (int r = 0; r < ranks; ++r)
        check(all_reduce(buffers[r][0], buffers[r][1], (size_t)bytes / 4, ncclFloat32, ncclSum, comms[r], NULL),
              "ncclAllReduce");
      check(end(), "ncclGroupEnd");
    }
    times[batch] = (now_ns() - begin) / (calls > 0 ? calls : 1);
  }
  for (int r = 0; r < ranks; ++r) check(destroy(comms[r]), "ncclCommDestroy");
  qsort(times, BATCHES, sizeof *times, ascending);
  printf("%.1f\n", times[BATCHES / 2]);
  return 0;
}
