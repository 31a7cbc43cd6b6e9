/* Calls of changing kinds, roots and sizes, small ones or of up to several chunks; now and then a rank is late, so that the
 * others run as far ahead as slots let them, or have heard of it since. Every element is checked.
 *
 *   small processes|threads NRANKS ROUNDS [mixed]
 */
#include "launch.h"

enum { MOST = 300000 };

static int rounds, mixed;

static int given(int rank, int round, int i) { return (i % 251 + round * 257) * (rank + 1); }

/* The same on all ranks. */
static unsigned draw(unsigned *state, unsigned below) {
  *state = *state * 1103515245u + 12345u;
  return (*state >> 16) % below;
}

static size_t body(int rank, ncclUniqueId id) {
  static const int small[] = {1, 12, 100, 256, 257, 512, 2048}, large[] = {12, 700, 1500, 5000, 30001, 90000, 300000};
  const int *const counts = mixed ? large : small;
  int *input = malloc(MOST * sizeof *input), *output = malloc(MOST * sizeof *output * (size_t)nranks);
  const int all = nranks * (nranks + 1) / 2 - 1; /* the rank whose input is the sum of all */
  ncclComm_t comm = NULL;
  unsigned state = 7;
  size_t checked = 0;
  int round, i, r;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (round = 0; round < rounds; ++round) {
    const unsigned stretch = draw(&state, 4) == 0 ? 12 : 1; /* calls from one root, which need not wait */
    const unsigned kind = draw(&state, 4), late = draw(&state, 8 * (unsigned)nranks);
    const int root = (int)draw(&state, (unsigned)nranks), count = counts[draw(&state, 7)];
    unsigned call;
    if (late == (unsigned)rank) usleep(300);
    for (call = 0; call < (kind == 0 ? stretch : 1); ++call) {
      const int number = round * 16 + (int)call;
      for (i = 0; i < count; ++i) input[i] = given(rank, number, i);
      memset(output, 0xa5, (size_t)count * (size_t)nranks * sizeof *output);
      if (kind == 0) check(ncclBroadcast(input, output, (size_t)count, ncclInt32, root, comm, NULL), "ncclBroadcast");
      if (kind == 1) check(ncclAllReduce(input, output, (size_t)count, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
      if (kind == 2) check(ncclAllGather(input, output, (size_t)count, ncclInt32, comm, NULL), "ncclAllGather");
      if (kind == 3) check(ncclReduce(input, output, (size_t)count, ncclInt32, ncclSum, root, comm, NULL), "ncclReduce");
      for (r = 0; r < (kind == 2 ? nranks : 1) && (kind != 3 || rank == root); ++r)
        for (i = 0; i < count; ++i, ++checked)
          require(output[r * count + i] == given(kind == 0 ? root : kind == 2 ? r : all, number, i), "an element");
    }
  }
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  free(input), free(output);
  return checked;
}

int main(int argc, char **argv) {
  if (argc < 4 || argc > 5 || (nranks = atoi(argv[2])) < 2 || (rounds = atoi(argv[3])) < 1) return 2;
  mixed = argc == 5;
  printf("%lu elements right\n", (unsigned long)(strcmp(argv[1], "processes") == 0 ? run_processes(body) : run_threads(body)));
  return 0;
}
