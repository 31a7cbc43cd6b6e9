/* Calls on two communicators of the same ranks, of which one rank makes one on the wrong communicator, or leaves one of a group
 * out. What follows is as seeds say: delays, other calls, and how each rank ends. Prints a line for each rank that fails.
 *
 * Arguments: threads or processes, ranks, first seed, last seed + 1. A line: seed, the odd rank, a rank, NCCL's text.
 */
#include <sys/mman.h>
#include <time.h>

#include "launch.h"

enum { MOST_STEPS = 6, MOST_COUNT = 100000, KINDS = 7 };
enum { DESTROYS, ABORTS, FINALIZES, EXITS, ENDS }; /* how a rank ends */
enum { LEAVES_ONE_OUT, BOTH_ON_ONE, SWAPS, MISTAKES }; /* what the odd rank does in a group */

typedef struct {
  int which, kind, root, is_grouped, mistake;
  size_t count;
} Step;

typedef struct {
  int nsteps, odd, odd_step;
  Step steps[MOST_STEPS];
} Plan;

static struct {
  pthread_barrier_t together;
  ncclUniqueId ids[2];
} *shared;
static unsigned long first_seed, last_seed;
static int has_threads;

static int draw(unsigned long *state, int below) {
  *state = *state * 6364136223846793005UL + 1442695040888963407UL;
  return (int)((*state ^ *state >> 29) >> 20 & 0xffffffUL) % below;
}

static void rest(int microseconds) {
  const struct timespec time = {0, microseconds * 1000L};
  nanosleep(&time, NULL);
}

static ncclResult_t call(const Step *step, int kind, float *in, float *out, ncclComm_t comm) {
  switch (kind % KINDS) {
    case 0:
      return ncclAllReduce(in, out, step->count, ncclFloat32, ncclSum, comm, NULL);
    case 1:
      return ncclBroadcast(in, out, step->count, ncclFloat32, step->root, comm, NULL);
    case 2:
      return ncclReduce(in, out, step->count, ncclFloat32, ncclSum, step->root, comm, NULL);
    case 3:
      return ncclAllGather(in, out, step->count, ncclFloat32, comm, NULL);
    case 4:
      return ncclReduceScatter(in, out, step->count, ncclFloat32, ncclSum, comm, NULL);
    case 5:
      return ncclAlltoAll(in, out, step->count, ncclFloat32, comm, NULL);
    default:
      return ncclGather(in, out, step->count, ncclFloat32, step->root, comm, NULL);
  }
}

/* A call on each communicator, in one group. */
static ncclResult_t call_both(const Step *step, int is_odd, float *in, float *out, ncclComm_t *comms) {
  const int mistake = is_odd ? step->mistake : MISTAKES;
  const int second = mistake == BOTH_ON_ONE ? step->which : 1 - step->which, swaps = mistake == SWAPS;
  ncclResult_t result, ended;
  check(ncclGroupStart(), "ncclGroupStart");
  result = call(step, step->kind, in, out, comms[step->which ^ swaps]);
  if (result == ncclSuccess && mistake != LEAVES_ONE_OUT)
    result = call(step, step->kind + 1, in, out + (size_t)nranks * MOST_COUNT, comms[second ^ swaps]);
  ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

static Plan make_plan(unsigned long *state) {
  static const size_t counts[] = {1, 1000, MOST_COUNT};
  Plan plan;
  int s;
  plan.nsteps = 1 + draw(state, MOST_STEPS);
  plan.odd = draw(state, nranks), plan.odd_step = draw(state, plan.nsteps);
  for (s = 0; s < plan.nsteps; ++s) {
    Step *step = &plan.steps[s];
    step->which = draw(state, 2), step->kind = draw(state, KINDS), step->root = draw(state, nranks);
    step->count = counts[draw(state, 3)];
    step->is_grouped = draw(state, 3) == 0, step->mistake = draw(state, MISTAKES);
  }
  return plan;
}

static void end_rank(int end, ncclComm_t *comms) {
  int i;
  if (end == EXITS && !has_threads) _exit(0);
  for (i = 0; i < 2; ++i) {
    if (end == FINALIZES) ncclCommFinalize(comms[i]);
    if (end == ABORTS)
      ncclCommAbort(comms[i]);
    else
      ncclCommDestroy(comms[i]);
  }
}

static size_t body(int rank, ncclUniqueId unused) {
  unsigned long state = first_seed * 7919 + 17;
  const size_t most = (size_t)nranks * MOST_COUNT;
  float *in = calloc(most, sizeof *in), *out = calloc(2 * most, sizeof *out);
  ncclComm_t comms[2] = {NULL, NULL};
  ncclResult_t result = ncclSuccess;
  const Plan plan = make_plan(&state);
  int s, i, end;
  (void)unused;
  state += (unsigned long)rank * 104729;
  for (i = 0; i < 8; ++i) draw(&state, 2);
  end = draw(&state, ENDS);
  for (i = 0; rank == 0 && i < 2; ++i) check(ncclGetUniqueId(&shared->ids[i]), "ncclGetUniqueId");
  pthread_barrier_wait(&shared->together);
  for (i = 0; i < 2; ++i) check(ncclCommInitRank(&comms[i], nranks, shared->ids[i], rank), "ncclCommInitRank");
  for (s = 0; s < plan.nsteps && result == ncclSuccess; ++s) {
    const Step *step = &plan.steps[s];
    const int is_odd = rank == plan.odd && s == plan.odd_step;
    if (draw(&state, 2)) rest(draw(&state, 3000));
    result = step->is_grouped ? call_both(step, is_odd, in, out, comms)
                              : call(step, step->kind, in, out, comms[step->which ^ is_odd]);
  }
  if (result != ncclSuccess) printf("%lu\t%d\t%d\t%s\n", first_seed, plan.odd, rank, ncclGetLastError(NULL));
  fflush(stdout);
  if (draw(&state, 3) == 0) rest(draw(&state, 20000));
  end_rank(end, comms);
  free(in);
  free(out);
  return 0;
}

int main(int argc, char **argv) {
  pthread_barrierattr_t for_processes;
  if (argc != 5 || (nranks = atoi(argv[2])) < 2 || nranks > MOST_RANKS) return 2;
  (void)run_processes; /* ranks may end without a word */
  has_threads = strcmp(argv[1], "threads") == 0;
  first_seed = strtoul(argv[3], NULL, 10), last_seed = strtoul(argv[4], NULL, 10);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(shared != MAP_FAILED, "memory");
  pthread_barrierattr_init(&for_processes);
  pthread_barrierattr_setpshared(&for_processes, PTHREAD_PROCESS_SHARED);
  for (; first_seed < last_seed; ++first_seed) {
    int status, failed = 0, r;
    pthread_barrier_init(&shared->together, &for_processes, (unsigned)nranks);
    fflush(stdout);
    if (has_threads) {
      run_threads(body);
      continue;
    }
    for (r = 0; r < nranks; ++r) {
      ncclUniqueId none;
      if (fork() != 0) continue;
      memset(&none, 0, sizeof none);
      body(r, none);
      exit(0);
    }
    for (r = 0; r < nranks; ++r) {
      wait(&status);
      failed |= status;
    }
    if (failed != 0) fprintf(stderr, "seed %lu: a rank ends with status %d\n", first_seed, failed);
    if (failed != 0) return 1;
  }
  return 0;
}
