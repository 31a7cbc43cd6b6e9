/* Results past the caches: all_reduce of more than 8 MiB, which its reducers store straight into every rank's output where
 * they reach it. Sums and averages of float32 and bfloat16, in place and not, outputs of the ranks at different places
 * within a cache line, guards around them. Prints how many elements were right.
 *
 *   large processes|threads NRANKS [malloc|memalloc]
 */
#include "launch.h"

enum { COUNT = 4400003, GUARD = 64, ROUNDS = 3 };
static const unsigned char guard = 0xa7;
static int from_memalloc;

static unsigned char *allocate(size_t bytes) {
  void *memory = NULL;
  if (from_memalloc)
    check(ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
  else
    memory = malloc(bytes);
  require(memory != NULL, "memory");
  return memory;
}

static void release(void *memory) {
  if (from_memalloc)
    check(ncclMemFree(memory), "ncclMemFree");
  else
    free(memory);
}

/* What rank r gives: multiples of the number of ranks, so that averages are whole, and sums small enough for 8 bits. */
static float given(int r, size_t i) { return (float)(nranks * (int)((i + (size_t)r) % 5)); }

static void put(unsigned char *at, int size, size_t i, float value) {
  unsigned int bits;
  unsigned short upper;
  memcpy(&bits, &value, 4);
  upper = (unsigned short)(bits >> 16);
  if (size == 4)
    memcpy(at + i * 4, &value, 4);
  else
    memcpy(at + i * 2, &upper, 2);
}

static float get(const unsigned char *at, int size, size_t i) {
  unsigned int bits = 0;
  unsigned short upper;
  float value;
  if (size == 4) {
    memcpy(&value, at + i * 4, 4);
    return value;
  }
  memcpy(&upper, at + i * 2, 2);
  bits = (unsigned int)upper << 16;
  memcpy(&value, &bits, 4);
  return value;
}

static size_t all_reduce(ncclComm_t comm, int rank, int size, int average, int in_place, int shift) {
  const size_t bytes = (size_t)COUNT * (size_t)size;
  unsigned char *input = allocate(bytes + 2 * GUARD), *output = in_place ? input : allocate(bytes + 2 * GUARD);
  unsigned char *in = input + GUARD, *out = output + shift;
  size_t i, right = 0;
  if (in_place) in = out;
  memset(output, guard, bytes + 2 * GUARD);
  for (i = 0; i < COUNT; ++i) put(in, size, i, given(rank, i));
  check(ncclAllReduce(in, out, COUNT, size == 4 ? ncclFloat32 : ncclBfloat16, average ? ncclAvg : ncclSum, comm, NULL),
        "ncclAllReduce");
  for (i = 0; i < COUNT; ++i) {
    float sum = 0;
    int r;
    for (r = 0; r < nranks; ++r) sum += given(r, i);
    require(get(out, size, i) == (average ? sum / (float)nranks : sum), "an element");
    ++right;
  }
  for (i = 0; i < bytes + 2 * GUARD; ++i) {
    if (output + i == out) i += bytes;
    require(output[i] == guard, "a guard");
  }
  if (!in_place) release(output);
  release(input);
  return right;
}

static size_t body(int rank, ncclUniqueId id) {
  ncclComm_t comm;
  size_t right = 0;
  int round;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (round = 0; round < ROUNDS; ++round) {
    right += all_reduce(comm, rank, 4, round % 2, round == 1, round == 0 ? 0 : 4 * (1 + rank * round));
    right += all_reduce(comm, rank, 2, round % 2, round == 1, round == 0 ? 0 : 2 * (1 + rank * round));
  }
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  return right;
}

int main(int argc, char **argv) {
  int threads;
  if (argc < 3 || (nranks = atoi(argv[2])) < 2 || nranks > MOST_RANKS) return 2;
  threads = strcmp(argv[1], "threads") == 0;
  from_memalloc = argc > 3 && strcmp(argv[3], "memalloc") == 0;
  printf("%lu elements right\n", (unsigned long)(threads ? run_threads(body) : run_processes(body)));
  return 0;
}
