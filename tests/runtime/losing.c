/* Communicators that lose classes of links while ranks are between calls, before them and amid them: every result is checked.
 * Rank 0 prints how many calls were made and how many classes were lost.
 *
 *   losing threads|processes NRANKS COMMUNICATORS
 */
#include <time.h>

#include "launch.h"

enum { COUNT = 5000, CALLS = 12, MOST_LOST = 3 };

int collc_lose_class(ncclComm_t comm, const char *name);

static int communicators;

static unsigned int draw(unsigned int *seed) {
  *seed = *seed * 1664525u + 1013904223u;
  return *seed >> 8;
}

static void look_at(const int *out, int call, int reduced) {
  int r, i;
  for (r = 0; r < (reduced ? 1 : nranks); ++r)
    for (i = 0; i < COUNT; ++i) {
      const int wanted = reduced ? nranks * (call + i) + nranks * (nranks - 1) / 2 : call + i + r;
      require(out[r * COUNT + i] == wanted, "the right sum or block");
    }
}

static size_t body(int rank, ncclUniqueId id) {
  static const char *const names[] = {"pcie", "net", "nvlink"};
  int *in = malloc(COUNT * sizeof *in), *out = malloc((size_t)nranks * COUNT * sizeof *out);
  ncclUniqueId next;
  size_t lost = 0;
  int c, n, i;
  for (c = 0; c < communicators; ++c) {
    ncclComm_t comm = NULL;
    unsigned int all = 7919u * (unsigned int)c + 1, mine = all + 104729u * (unsigned int)rank;
    unsigned int losers[MOST_LOST], when[MOST_LOST];
    for (i = 0; i < MOST_LOST; ++i) losers[i] = draw(&all) % (unsigned int)nranks, when[i] = draw(&all) % (2 * CALLS);
    check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
    for (n = 0; n < CALLS; ++n) {
      const int reduced = n % 2;
      if (draw(&mine) % 4 == 0) {
        const struct timespec nap = {0, (long)(draw(&mine) % 300000)};
        nanosleep(&nap, NULL);
      }
      for (i = 0; i < MOST_LOST - c % 2; ++i) /* all classes, or all but the last */
        if (losers[i] == (unsigned int)rank && when[i] == (unsigned int)n) lost += (size_t)collc_lose_class(comm, names[i]);
      for (i = 0; i < COUNT; ++i) in[i] = n + i + rank;
      if (reduced)
        check(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
      else
        check(ncclAllGather(in, out, COUNT, ncclInt32, comm, NULL), "ncclAllGather");
      look_at(out, n, reduced);
    }
    if (rank == 0) check(ncclGetUniqueId(&next), "ncclGetUniqueId");
    check(ncclBroadcast(&next, &next, sizeof next, ncclUint8, 0, comm, NULL), "ncclBroadcast");
    check(ncclCommDestroy(comm), "ncclCommDestroy");
    id = next;
  }
  free(in);
  free(out);
  return lost;
}

int main(int argc, char **argv) {
  size_t lost;
  if (argc != 4 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  communicators = atoi(argv[3]);
  lost = strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body);
  printf("%d %lu\n", communicators * CALLS, (unsigned long)lost);
  return 0;
}
