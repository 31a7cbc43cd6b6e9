/* Ranks are processes that end as soon as their last call has: with or without ncclCommDestroy, by exit or _exit, at
 * random moments, while others still wait for a late rank. Nobody's call may fail for that.
 * Arguments: ranks, rounds, seed.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const size_t COUNTS[] = {1, 33, 1000, 20000, 300000};

static void call(int which, ncclComm_t comm, const float *in, float *out, size_t count, int root) {
  switch (which) {
    case 0:
      check(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, NULL), "AllReduce");
      break;
    case 1:
      check(ncclReduce(in, out, count, ncclFloat, ncclSum, root, comm, NULL), "Reduce");
      break;
    case 2:
      check(ncclBroadcast(in, out, count, ncclFloat, root, comm, NULL), "Broadcast");
      break;
    case 3:
      check(ncclAllGather(in, out, count, ncclFloat, comm, NULL), "AllGather");
      break;
    default:
      check(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, NULL), "ReduceScatter");
  }
}

static void run_rank(int rank, int nranks, ncclUniqueId id, unsigned shared, unsigned own) {
  const int which = rand_r(&shared) % 5, root = rand_r(&shared) % nranks, calls = 1 + rand_r(&shared) % 3;
  const size_t count = COUNTS[rand_r(&shared) % 5], all = count * nranks, results = which == 3 ? all : count;
  const int memalloc = rand_r(&shared) % 3 == 0;
  const int sums = which == 0 || which == 1 || which == 4;
  void *in = NULL, *out = NULL;
  ncclComm_t comm = NULL;
  int i;
  size_t e;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  if (memalloc) {
    check(ncclMemAlloc(&in, all * sizeof(float)), "ncclMemAlloc");
    check(ncclMemAlloc(&out, all * sizeof(float)), "ncclMemAlloc");
  } else {
    in = malloc(all * sizeof(float));
    out = malloc(all * sizeof(float));
  }
  for (e = 0; e < all; ++e) ((float *)in)[e] = 1;
  for (i = 0; i < calls; ++i) {
    /* Mostly sooner than the others look for dead ranks, at times later. */
    if (rand_r(&own) % 2) usleep(rand_r(&own) % (rand_r(&own) % 4 ? 3000 : 40000));
    call(which, comm, in, out, count, root);
    if (which == 1 && rank != root) continue;
    require(((float *)out)[results - 1] == (sums ? (float)nranks : 1), "the last element");
  }
  if (rand_r(&own) % 2) usleep(rand_r(&own) % 2000);
  if (rand_r(&own) % 2) check(ncclCommDestroy(comm), "ncclCommDestroy");
  if (rand_r(&own) % 2) exit(0);
  _exit(0);
}

int main(int argc, char **argv) {
  const int nranks = atoi(argv[1]), rounds = atoi(argv[2]);
  const unsigned seed = (unsigned)atoi(argv[3]);
  int round, rank, failed = 0;
  (void)argc;
  for (round = 0; round < rounds && !failed; ++round) {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    for (rank = 0; rank < nranks; ++rank)
      if (fork() == 0) run_rank(rank, nranks, id, seed + round, (seed + round) * 97 + rank);
    for (rank = 0; rank < nranks; ++rank) {
      int status = 0;
      wait(&status);
      failed |= status;
    }
    if (failed) fprintf(stderr, "seed %u\n", seed + round);
  }
  if (failed) return 1;
  printf("%d rounds right\n", round);
  return 0;
}
