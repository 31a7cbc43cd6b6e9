/* Equal calls one after the other: rank 0 prints the microseconds that each took and a hash of the bits of its result.
 *
 *   balance threads|processes NRANKS allreduce|allgather|broadcast ELEMENTS CALLS
 */
#include <time.h>

#include "launch.h"

static const char *collective;
static size_t elements;
static int calls;

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

static size_t body(int rank, ncclUniqueId id) {
  ncclComm_t comm = NULL;
  const size_t most = elements * (size_t)nranks;
  float *in = malloc(elements * sizeof *in), *out = malloc(most * sizeof *out);
  unsigned int seed = 12345u + (unsigned int)rank;
  size_t i;
  int n;
  for (i = 0; i < elements; ++i) {
    seed = seed * 1664525u + 1013904223u;
    in[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
  }
  memset(out, 0, most * sizeof *out);
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (n = 0; n < calls; ++n) {
    const double begun = now_us();
    if (collective[3] == 'r')
      check(ncclAllReduce(in, out, elements, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
    else if (collective[3] == 'g')
      check(ncclAllGather(in, out, elements, ncclFloat32, comm, NULL), "ncclAllGather");
    else
      check(ncclBroadcast(in, out, elements, ncclFloat32, 0, comm, NULL), "ncclBroadcast");
    if (rank == 0) {
      printf("%.0f %08x\n", now_us() - begun, hash_of(out, most * sizeof *out));
      fflush(stdout);
    }
  }
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  free(in);
  free(out);
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 6 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  collective = argv[3];
  elements = (size_t)atol(argv[4]);
  calls = atoi(argv[5]);
  if (strcmp(argv[1], "threads") == 0)
    run_threads(body);
  else
    run_processes(body);
  return 0;
}
