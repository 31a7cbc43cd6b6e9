/* Buffers of ncclMemAlloc that come and go: allocated anew for every round at sizes that differ, called upon at odd offsets,
 * freed before the next round begins, inherited and freed by a forked child in between. Every element is checked, and in
 * the end no descriptor and no mapping is left (counted where ranks are processes). MAPS=1 in the environment: others' buffers
 * must have been mapped; 0: they must not. Prints how many elements were right.
 */
#include <dirent.h>
#include <unistd.h>

#include "launch.h"

enum { ROUNDS = 24, OFFSET = 3 };
static int alone; /* one rank in this process */

static int descriptors(void) {
  DIR *folder = opendir("/proc/self/fd");
  int found = 0;
  while (readdir(folder) != NULL) ++found;
  closedir(folder);
  return found;
}

static int mapped_buffers(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  int found = 0;
  while (fgets(line, sizeof line, maps) != NULL) found += strstr(line, "collc-buffer") != NULL;
  fclose(maps);
  return found;
}

static float *allocate(size_t count) {
  void *memory = NULL;
  check(ncclMemAlloc(&memory, (count + OFFSET) * sizeof(float)), "ncclMemAlloc");
  return memory;
}

/* A child that frees what it has inherited takes nothing from its parent or from those who read its parent's memory. */
static void free_in_child(float *buffer) {
  const pid_t child = fork();
  int status = 1;
  if (child == 0) _exit(ncclMemFree(buffer) == ncclSuccess ? 0 : 1);
  require(waitpid(child, &status, 0) == child && status == 0, "a child that frees");
}

static size_t body(int rank, ncclUniqueId id) {
  const float all = (float)(nranks * (nranks + 1) / 2);
  size_t checked = 0, i;
  int round, before, most = 0;
  ncclComm_t comm;
  float *last = allocate(1); /* whatever the first allocation leaves behind is there before we count */
  check(ncclMemFree(last), "ncclMemFree");
  before = descriptors();
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  require(!alone || mapped_buffers() == 0, "nothing is mapped by creation");
  for (round = 0; round < ROUNDS; ++round) {
    const size_t count = (size_t)(40000 + 7001 * (round % 5)) << (round % 8 == 7 ? 4 : 0), n = (size_t)nranks;
    float *input = allocate(count * n), *output = allocate(count * n), *in = input + OFFSET, *out = output + OFFSET;
    void *handle = NULL;
    check(ncclCommRegister(comm, input, count * n * sizeof(float), &handle), "ncclCommRegister");
    for (i = 0; i < count * n; ++i) in[i] = (float)(rank + 1) * (float)(i % 5 + 1);
    if (round % 6 == 5) free_in_child(rank % 2 ? input : output);
    check(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
    for (i = 0; i < count; ++i) require(out[i] == all * (float)(i % 5 + 1), "all_reduce"), ++checked;
    check(ncclReduceScatter(in, out, count, ncclFloat32, ncclSum, comm, NULL), "ncclReduceScatter");
    for (i = 0; i < count; ++i)
      require(out[i] == all * (float)((i + (size_t)rank * count) % 5 + 1), "reduce_scatter"), ++checked;
    check(ncclAllGather(in, out, count, ncclFloat32, comm, NULL), "ncclAllGather");
    for (i = 0; i < count * n; ++i)
      require(out[i] == (float)(i / count + 1) * (float)(i % count % 5 + 1), "all_gather"), ++checked;
    check(ncclBroadcast(in, out, count, ncclFloat32, round % nranks, comm, NULL), "ncclBroadcast");
    for (i = 0; i < count; ++i) require(out[i] == (float)(round % nranks + 1) * (float)(i % 5 + 1), "broadcast"), ++checked;
    most = mapped_buffers() > most ? mapped_buffers() : most;
    check(ncclCommDeregister(comm, handle), "ncclCommDeregister");
    check(ncclMemFree(input), "ncclMemFree");
    check(ncclMemFree(output), "ncclMemFree");
  }
  /* Two of our own, those of the others of this round, and some of theirs that we have yet to find freed. */
  require(!alone || getenv("MAPS") == NULL || (most > 2) == (atoi(getenv("MAPS")) != 0), "others' buffers are mapped, or not");
  require(!alone || (most >= 2 && most <= 2 + 24 * (nranks - 1)), "freed buffers are unmapped while calls go on");
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  require(!alone || mapped_buffers() == 0, "no mapping is left");
  require(!alone || descriptors() <= before + (rank == 0 ? 1 : 0),
          "no descriptor is left"); /* rank 0's id may still be served */
  return checked;
}

int main(int argc, char **argv) {
  if (argc < 3 || (nranks = atoi(argv[2])) < 2 || nranks > MOST_RANKS) return 2;
  alone = strcmp(argv[1], "threads") != 0;
  printf("%lu elements right\n", (unsigned long)(alone ? run_processes(body) : run_threads(body)));
  return 0;
}
