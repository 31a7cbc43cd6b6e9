/* Ranks that share cores spread over them. The kernel is played here: two cores, all ranks begin on the first one, and none
 * moves but by sched_setaffinity. Each rank tells the others by all_reduces how many are on the first core.
 *
 *   spread_calls processes|threads NRANKS
 */
#include "launch.h"

enum { BOTH = 3, FIRST = 1, SECOND = 2, MOST_CALLS = 10000000 };

static __thread int core, mask = BOTH, moves;

int sched_getcpu(void) { return core; }

int sched_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set) {
  (void)thread;
  memset(set, 0, bytes);
  if (mask & FIRST) CPU_SET(0, set);
  if (mask & SECOND) CPU_SET(1, set);
  return 0;
}

int sched_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *set) {
  require(thread == 0 && bytes == sizeof *set, "a thread moves itself");
  mask = (CPU_ISSET(0, set) ? FIRST : 0) | (CPU_ISSET(1, set) ? SECOND : 0);
  require(CPU_COUNT(set) == (mask == BOTH ? 2 : 1) && mask != 0, "cores that there are");
  if (mask == BOTH) return 0;
  core = mask == FIRST ? 0 : 1;
  ++moves;
  return 0;
}

static size_t body(int rank, ncclUniqueId id) {
  ncclComm_t comm = NULL;
  int first = nranks, calls;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (calls = 0; first > nranks - nranks / 2 && calls < MOST_CALLS; ++calls) {
    const int here = core == 0 ? 1 : 0;
    check(ncclAllReduce(&here, &first, 1, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
  }
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  require(first == nranks - nranks / 2, "half of the ranks on each core");
  require(mask == BOTH, "the same cores as before");
  return (size_t)moves;
}

int main(int argc, char **argv) {
  if (argc != 3 || (nranks = atoi(argv[2])) < 2) return 2;
  printf("%lu moves\n", (unsigned long)(strcmp(argv[1], "processes") == 0 ? run_processes(body) : run_threads(body)));
  return 0;
}
