/* All ranks in one thread: several all_gathers of one group, again and again, every element checked. */
#include <string.h>

#include "check.h"

enum { MOST_RANKS = 16, COUNT = 1 << 18, TOGETHER = 3, GROUPS = 20 };

int main(int argc, char **argv) {
  ncclComm_t comms[MOST_RANKS];
  unsigned int *in[MOST_RANKS], *out[MOST_RANKS][TOGETHER];
  int nranks, r, n, g;
  size_t i;
  if (argc != 2 || (nranks = atoi(argv[1])) < 1 || nranks > MOST_RANKS) return 2;
  check(ncclCommInitAll(comms, nranks, NULL), "ncclCommInitAll");
  for (r = 0; r < nranks; ++r) {
    in[r] = malloc(COUNT * sizeof **in);
    for (n = 0; n < TOGETHER; ++n) out[r][n] = malloc((size_t)nranks * COUNT * sizeof ***out);
  }
  for (g = 0; g < GROUPS; ++g) {
    for (r = 0; r < nranks; ++r) {
      for (i = 0; i < COUNT; ++i) in[r][i] = (unsigned int)i * 8u + (unsigned int)(r + g);
      for (n = 0; n < TOGETHER; ++n) memset(out[r][n], 0, (size_t)nranks * COUNT * sizeof ***out);
    }
    check(ncclGroupStart(), "ncclGroupStart");
    for (r = 0; r < nranks; ++r)
      for (n = 0; n < TOGETHER; ++n) check(ncclAllGather(in[r], out[r][n], COUNT, ncclUint32, comms[r], NULL), "ncclAllGather");
    check(ncclGroupEnd(), "ncclGroupEnd");
    for (r = 0; r < nranks; ++r)
      for (n = 0; n < TOGETHER; ++n)
        for (i = 0; i < (size_t)nranks * COUNT; ++i)
          require(out[r][n][i] == (unsigned int)(i % COUNT) * 8u + (unsigned int)((int)(i / COUNT) + g), "an element");
  }
  for (r = 0; r < nranks; ++r) {
    check(ncclCommDestroy(comms[r]), "ncclCommDestroy");
    free(in[r]);
    for (n = 0; n < TOGETHER; ++n) free(out[r][n]);
  }
  return 0;
}
