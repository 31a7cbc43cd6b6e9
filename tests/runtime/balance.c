/* Equal calls one after the other: rank 0 prints the microseconds that each took and a hash of the bits of its result.
 * With NAME=VALUE each call is made over two communicators in turn, the second one made with that in the environment, and a
 * line has the same of both.
 *
 *   balance threads|processes NRANKS allreduce|allgather|broadcast ELEMENTS CALLS [NAME=VALUE]
 */
#include <time.h>

#include "launch.h"

static const char *collective;
static size_t elements;
static int calls;
static char *beside;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static unsigned int hash_of(const void *data, size_t bytes) {
  unsigned int hash = 2166136261u;
  size_t i;
  for (i = 0; i < bytes; ++i) hash = (hash ^ ((const unsigned char *)data)[i]) * 16777619u;
  return hash;
}

static void call(const float *in, float *out, ncclComm_t comm) {
  if (collective[3] == 'r')
    check(ncclAllReduce(in, out, elements, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
  else if (collective[3] == 'g')
    check(ncclAllGather(in, out, elements, ncclFloat32, comm, NULL), "ncclAllGather");
  else
    check(ncclBroadcast(in, out, elements, ncclFloat32, 0, comm, NULL), "ncclBroadcast");
}

static size_t body(int rank, ncclUniqueId id) {
  ncclComm_t comms[2] = {NULL, NULL};
  const size_t most = elements * (size_t)nranks;
  float *in = malloc(elements * sizeof *in), *out = malloc(most * sizeof *out);
  unsigned int seed = 12345u + (unsigned int)rank;
  size_t i;
  int n, c;
  for (i = 0; i < elements; ++i) {
    seed = seed * 1664525u + 1013904223u;
    in[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
  }
  memset(out, 0, most * sizeof *out);
  check(ncclCommInitRank(&comms[0], nranks, id, rank), "ncclCommInitRank");
  if (beside != NULL) {
    if (rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    check(ncclBroadcast(&id, &id, sizeof id, ncclUint8, 0, comms[0], NULL), "ncclBroadcast");
    putenv(beside);
    check(ncclCommInitRank(&comms[1], nranks, id, rank), "ncclCommInitRank");
  }
  for (n = 0; n < calls; ++n) {
    for (c = 0; c < 2 && comms[c] != NULL; ++c) {
      const double begun = now_us();
      call(in, out, comms[c]);
      if (rank == 0) printf("%s%.0f %08x", c != 0 ? " " : "", now_us() - begun, hash_of(out, most * sizeof *out));
    }
    if (rank == 0) {
      printf("\n");
      fflush(stdout);
    }
  }
  for (c = 0; c < 2 && comms[c] != NULL; ++c) check(ncclCommDestroy(comms[c]), "ncclCommDestroy");
  free(in);
  free(out);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 6 || argc > 7 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  collective = argv[3];
  elements = (size_t)atol(argv[4]);
  calls = atoi(argv[5]);
  beside = argc == 7 ? argv[6] : NULL; /* processes: a thread's environment is that of all */
  if (strcmp(argv[1], "threads") == 0)
    run_threads(body);
  else
    run_processes(body);
  return 0;
}
