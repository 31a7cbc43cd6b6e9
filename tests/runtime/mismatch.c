/* Every ordered pair of calls that differ: all ranks make the first, one of them, each in its turn, the second. Every rank
 * must get ncclInvalidUsage with both calls named, in that call or, where it had returned, in a later one; and nobody may
 * wait for ever. What follows is an all_reduce of all ranks, or the same calls again.
 *
 * Arguments: threads, processes or thread (all ranks in groups of one thread); ranks; size (line, slot, direct or large);
 * malloc or memalloc; stride and first: of all cases every stride-th from the first on; "survey": count what hangs, go on.
 * A case that takes longer than COLLC_PATIENCE seconds (default 60) counts as one that hangs.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { MOST_RANKS = 16 };
static int nranks;

enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, NCOLLECTIVES };
/* Transfers: each sends to the next and receives from the one before; or the other way; or only one half of that. */
enum { RING = NCOLLECTIVES, RING_BACK, SEND, RECEIVE };
static const char *const names[] = {"all_reduce", "broadcast", "reduce",     "all_gather", "reduce_scatter", "alltoall",
                                    "gather",     "scatter",   "a transfer", "a transfer", "a transfer",     "a transfer"};

typedef struct {
  int kind, type, op, root;
  size_t count;
} Spec;

typedef struct {
  Spec usual, odd;
  int victim, again; /* again: the same calls follow, not an all_reduce */
  size_t number;
} Case;

typedef struct {
  int made, first, last, asked, calls;
  char text[640];
} Outcome;

enum { MOST_SPECS = 96, FOLLOWING = 8, MOST_FOLLOWING = 4096 };
static Spec specs[MOST_SPECS];
static int nspecs;
static size_t biggest;
static int memalloc;
static Outcome *outcomes; /* by rank, in memory that processes share */
static ncclComm_t comms[MOST_RANKS];

static size_t size_of(int type) { return type == ncclFloat64 ? 8 : 4; }
static int reduces(int kind) { return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER; }
static int is_rooted(int kind) { return kind == BROADCAST || kind == REDUCE || kind == GATHER || kind == SCATTER; }
static int is_transfer(int kind) { return kind >= RING; }

static void add(Spec spec) {
  require(nspecs < MOST_SPECS, "room for all calls");
  specs[nspecs++] = spec;
  if (spec.count * size_of(spec.type) > biggest) biggest = spec.count * size_of(spec.type);
}

/* Each call with one thing changed at a time; a pair of two changed ones differs in two. */
static void make_specs(size_t count, size_t other) {
  int kind;
  for (kind = 0; kind < NCOLLECTIVES; ++kind) {
    const Spec base = {kind, ncclFloat32, ncclSum, 0, count};
    Spec changed = base;
    add(base);
    changed.count = count + 1, add(changed);
    changed.count = other, add(changed);
    changed.count = 0, add(changed);
    changed = base, changed.type = ncclInt32, add(changed);
    changed.type = ncclFloat64, add(changed);
    changed = base, changed.op = ncclMax;
    if (reduces(kind)) add(changed);
    changed = base, changed.root = 1;
    if (is_rooted(kind)) add(changed);
  }
  for (kind = RING; kind <= RECEIVE; ++kind) {
    Spec changed = {kind, ncclFloat32, ncclSum, 0, count};
    add(changed);
    if (kind != RING) continue;
    changed.count = count + 1, add(changed);
    changed = specs[nspecs - 2], changed.type = ncclFloat64, add(changed);
  }
}

static const Spec following = {ALL_REDUCE, ncclFloat32, ncclSum, 0, FOLLOWING};

/*
 * Sends that nobody receives fit into the library's buffers, and then end like any other; the rank that made one is then
 * a call behind, which shows unless the others' call is like those that follow.
 */
static int is_defined(const Spec *usual, const Spec *odd) {
  if (usual->kind == RING_BACK || usual->kind == SEND || usual->kind == RECEIVE) return 0;
  return odd->kind != SEND || (usual->kind != RING && memcmp(usual, &following, sizeof following) != 0);
}

static ncclResult_t call(const Spec *spec, int rank, void *in, void *out, ncclComm_t comm) {
  const ncclDataType_t type = (ncclDataType_t)spec->type;
  const ncclRedOp_t op = (ncclRedOp_t)spec->op;
  const size_t count = spec->count;
  const int next = (rank + 1) % nranks, before = (rank + nranks - 1) % nranks, back = spec->kind == RING_BACK;
  ncclResult_t first, second;
  switch (spec->kind) {
    case ALL_REDUCE:
      return ncclAllReduce(in, out, count, type, op, comm, NULL);
    case BROADCAST:
      return ncclBroadcast(in, out, count, type, spec->root, comm, NULL);
    case REDUCE:
      return ncclReduce(in, out, count, type, op, spec->root, comm, NULL);
    case ALL_GATHER:
      return ncclAllGather(in, out, count, type, comm, NULL);
    case REDUCE_SCATTER:
      return ncclReduceScatter(in, out, count, type, op, comm, NULL);
    case ALL_TO_ALL:
      return ncclAlltoAll(in, out, count, type, comm, NULL);
    case GATHER:
      return ncclGather(in, out, count, type, spec->root, comm, NULL);
    case SCATTER:
      return ncclScatter(in, out, count, type, spec->root, comm, NULL);
    case SEND:
      return ncclSend(in, count, type, next, comm, NULL);
    case RECEIVE:
      return ncclRecv(out, count, type, before, comm, NULL);
    default:
      ncclGroupStart();
      first = ncclSend(in, count, type, back ? before : next, comm, NULL);
      second = ncclRecv(out, count, type, back ? next : before, comm, NULL);
      if (first == ncclSuccess) first = second;
      second = ncclGroupEnd();
      return first == ncclSuccess ? second : first;
  }
}

static void *room(void) {
  void *memory = malloc(biggest * (size_t)nranks);
  if (!memalloc) return memory;
  free(memory);
  check(ncclMemAlloc(&memory, biggest * (size_t)nranks), "ncclMemAlloc");
  return memory;
}

static void give_back(void *memory) {
  if (memalloc)
    check(ncclMemFree(memory), "ncclMemFree");
  else
    free(memory);
}

/* Rank `rank`'s next call after `calls` of them; the first three calls are the same on all ranks. */
static const Spec *next_call(const Case *c, int rank, int calls) {
  const Spec *mine = rank == c->victim ? &c->odd : &c->usual;
  if (calls < 3) return &following;
  return calls == 3 || c->again ? mine : &following;
}

static const Case *current;
static ncclUniqueId current_id;

static void run_rank(int rank) {
  Outcome *mine = &outcomes[rank];
  void *in = room(), *out = room();
  ncclResult_t asked = ncclSuccess;
  memset(in, 0, biggest * (size_t)nranks);
  mine->last = ncclCommInitRank(&comms[rank], nranks, current_id, rank);
  mine->made = mine->last == ncclSuccess;
  while (mine->made && mine->last == ncclSuccess && mine->calls < MOST_FOLLOWING) {
    mine->last = call(next_call(current, rank, mine->calls), rank, in, out, comms[rank]);
    if (mine->calls == 3) mine->first = mine->last;
    ++mine->calls;
  }
  snprintf(mine->text, sizeof mine->text, "%s", ncclGetLastError(NULL));
  if (mine->made) {
    ncclCommGetAsyncError(comms[rank], &asked);
    mine->asked = asked;
    ncclCommDestroy(comms[rank]);
  }
  give_back(in);
  give_back(out);
}

static void *run_thread(void *rank) {
  run_rank((int)(size_t)rank);
  return NULL;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double patience = 60;

/* True if all ranks came to an end in time. */
static int run_in_threads(void) {
  pthread_t threads[MOST_RANKS];
  struct timespec until;
  int ended = 1, r;
  check(ncclGetUniqueId(&current_id), "ncclGetUniqueId");
  for (r = 0; r < nranks; ++r) pthread_create(&threads[r], NULL, run_thread, (void *)(size_t)r);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)patience;
  until.tv_nsec = (long)((patience - (double)(time_t)patience) * 1e9);
  for (r = 0; r < nranks; ++r) {
    if (pthread_timedjoin_np(threads[r], NULL, &until) == 0) continue;
    if (ended) ncclCommAbort(comms[r]);
    ended = 0;
    pthread_join(threads[r], NULL);
  }
  return ended;
}

static int run_in_processes(void) {
  pid_t children[MOST_RANKS];
  const double until = seconds() + patience;
  int left = nranks, ended = 1, r;
  check(ncclGetUniqueId(&current_id), "ncclGetUniqueId");
  for (r = 0; r < nranks; ++r) {
    if ((children[r] = fork()) != 0) continue;
    run_rank(r);
    _exit(0);
  }
  while (left > 0) {
    for (r = 0; r < nranks; ++r) {
      if (children[r] == 0 || waitpid(children[r], NULL, WNOHANG) == 0) continue;
      children[r] = 0;
      --left;
    }
    if (ended && seconds() > until) {
      ended = 0;
      for (r = 0; r < nranks; ++r)
        if (children[r] != 0) kill(children[r], SIGKILL);
    }
    usleep(300);
  }
  return ended;
}

/* All ranks in one thread: a group holds one call of each. A watchdog ends the process where that hangs. */
static int run_in_one_thread(void) {
  void *in[MOST_RANKS], *out[MOST_RANKS];
  ncclResult_t last = ncclSuccess, asked;
  int calls, r;
  check(ncclCommInitAll(comms, nranks, NULL), "ncclCommInitAll");
  for (r = 0; r < nranks; ++r) in[r] = room(), out[r] = room(), memset(in[r], 0, biggest * (size_t)nranks);
  alarm((unsigned)patience + 1);
  for (calls = 0; last == ncclSuccess && calls < MOST_FOLLOWING; ++calls) {
    check(ncclGroupStart(), "ncclGroupStart");
    for (r = 0; r < nranks; ++r) {
      const ncclResult_t added = call(next_call(current, r, calls), r, in[r], out[r], comms[r]);
      if (last == ncclSuccess) last = added;
    }
    asked = ncclGroupEnd();
    if (last == ncclSuccess) last = asked;
  }
  alarm(0);
  for (r = 0; r < nranks; ++r) {
    outcomes[r].made = 1, outcomes[r].last = last, outcomes[r].calls = calls;
    snprintf(outcomes[r].text, sizeof outcomes[r].text, "%s", ncclGetLastError(NULL));
    ncclCommGetAsyncError(comms[r], &asked);
    outcomes[r].asked = asked;
  }
  for (r = 0; r < nranks; ++r) ncclCommDestroy(comms[r]), give_back(in[r]), give_back(out[r]);
  return 1;
}

static void say(const Case *c, const char *what) {
  int r;
  fprintf(stderr,
          "case %lu (%s): usual %s count %lu type %d op %d root %d; rank %d %s (%d) count %lu type %d op %d root %d%s\n",
          (unsigned long)c->number, what, names[c->usual.kind], (unsigned long)c->usual.count, c->usual.type, c->usual.op,
          c->usual.root, c->victim, names[c->odd.kind], c->odd.kind, (unsigned long)c->odd.count, c->odd.type, c->odd.op,
          c->odd.root, c->again ? ", again" : "");
  for (r = 0; r < nranks; ++r)
    fprintf(stderr, "  rank %d: made %d, result %d in call %d, asked %d: %s\n", r, outcomes[r].made, outcomes[r].last,
            outcomes[r].calls, outcomes[r].asked, outcomes[r].text);
}

/* Transfers have no number: it may be the next call of a rank that is named beside one, or a later one instead. */
static int is_named(const char *text, int kind) {
  return is_transfer(kind) || strstr(text, names[kind]) != NULL || strstr(text, "a send of") != NULL ||
         strstr(text, "a receive of") != NULL;
}

/* NULL or what is wrong. */
static const char *judge(const Case *c) {
  int r;
  for (r = 0; r < nranks; ++r) {
    const Outcome *mine = &outcomes[r];
    if (!mine->made) return "no communicator";
    /* A rank that is still in the call before learns there of what the others have begun. */
    if (mine->calls < 3) return "a call before failed";
    if (mine->last != ncclInvalidUsage) return "another result than ncclInvalidUsage";
    if (mine->asked != ncclInvalidUsage) return "ncclCommGetAsyncError says something else";
    if (strstr(mine->text, "calls differ") == NULL) return "another reason";
    if (!is_named(mine->text, c->usual.kind) || !is_named(mine->text, c->odd.kind)) return "not both calls are named";
    /* An all_reduce ends nowhere before all ranks have taken part in it. */
    if (!c->again && mine->calls > 5) return "the next call has succeeded";
  }
  return NULL;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    size_t count, other;
  } sizes[] = {{"line", 8, 20000}, {"slot", 300, 8}, {"direct", 20000, 300}, {"large", 300000, 20000}};
  size_t stride, first, number = 0, ran = 0, hung = 0, wrong = 0, s = 0;
  int (*run)(void), survey, x, y;
  Case c;
  if (argc < 7 || (nranks = atoi(argv[2])) < 2 || nranks > MOST_RANKS) return 2;
  run = strcmp(argv[1], "threads") == 0  ? run_in_threads
        : strcmp(argv[1], "thread") == 0 ? run_in_one_thread
                                         : run_in_processes;
  while (s < 4 && strcmp(sizes[s].name, argv[3]) != 0) ++s;
  if (s == 4) return 2;
  memalloc = strcmp(argv[4], "memalloc") == 0;
  stride = (size_t)atoi(argv[5]), first = (size_t)atoi(argv[6]);
  survey = argc > 7 && strcmp(argv[7], "survey") == 0;
  if (getenv("COLLC_PATIENCE") != NULL) patience = atof(getenv("COLLC_PATIENCE"));
  outcomes = mmap(NULL, sizeof(Outcome) * MOST_RANKS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(outcomes != MAP_FAILED, "shared memory");
  make_specs(sizes[s].count, sizes[s].other);
  for (x = 0; x < nspecs; ++x)
    for (y = 0; y < nspecs; ++y) {
      if (x == y || !is_defined(&specs[x], &specs[y])) continue;
      for (c.victim = 0; c.victim < nranks; ++c.victim, ++number) {
        const char *problem;
        int ended;
        if (number % stride != first) continue;
        c.usual = specs[x], c.odd = specs[y], c.number = number;
        /* Calls of no elements return at once, for ever; so do small sends until the buffers are full. */
        c.again = number / stride % 2 == 1 && specs[x].count != 0 && specs[y].count != 0 && run != run_in_one_thread &&
                  (is_transfer(specs[x].kind) == is_transfer(specs[y].kind));
        current = &c;
        memset(outcomes, 0, sizeof(Outcome) * MOST_RANKS);
        ended = run();
        problem = ended ? judge(&c) : "hangs";
        hung += !ended;
        wrong += ended && problem != NULL;
        ++ran;
        if (problem == NULL) continue;
        say(&c, problem);
        if (!survey) return 1;
      }
    }
  printf("%lu cases of %lu, %lu hung, %lu wrong\n", (unsigned long)ran, (unsigned long)number, (unsigned long)hung,
         (unsigned long)wrong);
  if (hung + wrong == 0) printf("all found\n");
  return 0;
}
