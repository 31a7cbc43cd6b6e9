/* Parts of a communicator of 8 or 4 ranks whose GPUs the library knows: a shrink, splits by color, a shrink after a rank
 * has gone. */
#include "launch.h"

enum { COUNT = 5003 };

/* All ranks of `comm` contribute 1 + their rank in it; checks the sum and a broadcast from every rank. */
static size_t exercise(ncclComm_t comm) {
  int *data = malloc(COUNT * sizeof *data), size = 0, mine = 0, i, root;
  check(ncclCommCount(comm, &size), "ncclCommCount");
  check(ncclCommUserRank(comm, &mine), "ncclCommUserRank");
  for (i = 0; i < COUNT; ++i) data[i] = i * (1 + mine);
  check(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
  for (i = 0; i < COUNT; ++i) require(data[i] == i * size * (size + 1) / 2, "the sum of a part");
  for (root = 0; root < size; ++root) {
    for (i = 0; i < COUNT; ++i) data[i] = mine == root ? i + root : -1;
    check(ncclBcast(data, COUNT, ncclInt32, root, comm, NULL), "ncclBcast");
    for (i = 0; i < COUNT; ++i) require(data[i] == i + root, "a broadcast in a part");
  }
  free(data);
  return (size_t)COUNT * (size_t)(1 + size);
}

static size_t body(int rank, ncclUniqueId id) {
  /* Colors of the 8 ranks: {0,1,4} and {2,3,6}; {0..3} and {4..7}; one GPU each. */
  static const int of_8[3][8] = {{0, 0, 1, 1, 0, -1, 1, -1}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7}};
  /* Of 4: {0,2} and {1,3}; {0,1} and {2,3}; {0,1,2}. */
  static const int of_4[3][8] = {{0, 1, 0, 1}, {0, 0, 1, 1}, {0, 0, 0, -1}};
  const int (*colors)[8] = nranks == 8 ? of_8 : of_4;
  ncclComm_t comm = NULL, part = NULL;
  int excluded_of_8[] = {2, 3, 5, 6, 7}, excluded_of_4[] = {3}, i;
  int *excluded = nranks == 8 ? excluded_of_8 : excluded_of_4, nexcluded = nranks == 8 ? 5 : 1;
  size_t checked = 0;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  checked += exercise(comm);
  /* A shrink that leaves the parent as it is: those left out know nothing of it, and all take part in what follows. */
  for (i = 0; i < nexcluded && excluded[i] != rank; ++i) {
  }
  if (i == nexcluded) {
    check(ncclCommShrink(comm, excluded, nexcluded, &part, NULL, NCCL_SHRINK_DEFAULT), "ncclCommShrink");
    checked += exercise(part);
    check(ncclCommDestroy(part), "ncclCommDestroy");
    part = NULL;
  }
  for (i = 0; i < 3; ++i) {
    check(ncclCommSplit(comm, colors[i][rank] < 0 ? NCCL_SPLIT_NOCOLOR : colors[i][rank], 8 - rank, &part, NULL),
          "ncclCommSplit");
    require((part != NULL) == (colors[i][rank] >= 0), "who is in a part");
    if (part == NULL) continue;
    checked += exercise(part);
    check(ncclCommDestroy(part), "ncclCommDestroy");
  }
  for (i = 0; i < nexcluded; ++i)
    if (excluded[i] == rank) {
      check(ncclCommAbort(comm), "ncclCommAbort");
      return checked;
    }
  /* The parent is broken now; those who stay go on without the others. */
  part = NULL;
  check(ncclCommShrink(comm, excluded, nexcluded, &part, NULL, NCCL_SHRINK_ABORT), "ncclCommShrink");
  checked += exercise(part);
  check(ncclCommDestroy(part), "ncclCommDestroy");
  check(ncclCommAbort(comm), "ncclCommAbort");
  return checked;
}

int main(int argc, char **argv) {
  if (argc != 3 || ((nranks = atoi(argv[2])) != 8 && nranks != 4)) return 2;
  printf("%lu elements right\n", (unsigned long)(strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body)));
  return 0;
}
