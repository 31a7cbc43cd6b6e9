/* Sums of random floats, whose last bits depend on the order of addition: prints a hash of the result of every call after
 * checking that all ranks got the same bits.
 */
#include "launch.h"

enum { COUNT = 70001 };

static size_t body(int rank, ncclUniqueId id) {
  static const size_t counts[] = {1, 7, 1000, COUNT};
  ncclComm_t comm = NULL;
  float *data = malloc(COUNT * sizeof *data);
  unsigned int *all = malloc(MOST_RANKS * sizeof *all);
  unsigned int seed = 12345u + (unsigned int)rank, hash = 2166136261u;
  size_t i, n;
  int r;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (n = 0; n < sizeof counts / sizeof *counts; ++n) {
    for (i = 0; i < counts[n]; ++i) {
      seed = seed * 1664525u + 1013904223u;
      data[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
    }
    check(ncclAllReduce(data, data, counts[n], ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
    for (i = 0; i < counts[n] * sizeof *data; ++i) hash = (hash ^ ((unsigned char *)data)[i]) * 16777619u;
  }
  all[rank] = hash;
  check(ncclAllGather(all + rank, all, 1, ncclUint32, comm, NULL), "ncclAllGather");
  for (r = 0; r < nranks; ++r) require(all[r] == hash, "the same bits on all ranks");
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  free(data);
  free(all);
  return rank == 0 ? hash : 0;
}

int main(int argc, char **argv) {
  if (argc != 3 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  printf("%lx\n", (unsigned long)(strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body)));
  return 0;
}
