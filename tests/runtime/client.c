/* A client that knows nothing but nccl.h. It makes `nranks` ranks in the way that is asked for and runs every collective,
 * type, operation and root on many counts, in place and out of place, checking every element.
 *
 *   client thread NRANKS      all ranks in one thread: ncclCommInitAll and groups
 *   client threads NRANKS     one thread per rank
 *   client processes NRANKS   one process per rank
 *
 * A third argument says where buffers come from: "malloc", "memalloc" (ncclMemAlloc), "mixed" (ncclMemAlloc on odd ranks),
 * "kept" (ncclMemAlloc, and one buffer in three is used again). Offsets within them differ from case to case.
 *
 * Prints the number of checked elements; exits with 1 after the first wrong one or failed call.
 */
#include "launch.h"

enum { NOPS = 5, NTYPES = 10 };
enum { ALL_REDUCE, BROADCAST, BCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, NCOLLECTIVES };
static const char *const names[] = {"AllReduce", "Broadcast", "Bcast", "Reduce", "AllGather", "ReduceScatter"};
static const int sizes[NTYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static const size_t counts[] = {0, 1, 5, 16, 1000, 5001, 40013};
static const unsigned char guard = 0xc3;
enum { GUARD = 32 };

/* A small non-negative integer as an element of the type. */
static void put(unsigned char *at, int type, long value) {
  float f = (float)value;
  double d = (double)value;
  unsigned int bits;
  unsigned short half = 0;
  switch (type) {
    case ncclFloat32:
      memcpy(at, &f, 4);
      return;
    case ncclFloat64:
      memcpy(at, &d, 8);
      return;
    case ncclBfloat16:
      memcpy(&bits, &f, 4);
      half = (unsigned short)(bits >> 16);
      memcpy(at, &half, 2);
      return;
    case ncclFloat16:
      memcpy(&bits, &f, 4);
      if (value != 0) half = (unsigned short)((((bits >> 23) - 127 + 15) << 10) | ((bits >> 13) & 0x3ff));
      memcpy(at, &half, 2);
      return;
    default: /* integers wrap */
      memcpy(at, &value, (size_t)sizes[type]);
  }
}

/* Element i of what rank r puts in, and of the reduction of all ranks. Exact in every type. */
static long input(int op, int r, size_t i) {
  switch (op) {
    case ncclProd:
      return 1 + (long)((i + (size_t)r) % 4 == 0);
    case ncclMax:
    case ncclMin:
      return (long)((i * 7 + (size_t)r * 13) % 100);
    case ncclAvg:
      return (long)(i % 7);
    default:
      return (long)((i + 3 * (size_t)r) % 8);
  }
}

static long reduced(int op, size_t i) {
  long value = input(op, 0, i);
  int r;
  if (op == ncclAvg) return value;
  for (r = 1; r < nranks; ++r) {
    const long next = input(op, r, i);
    if (op == ncclSum) value += next;
    if (op == ncclProd) value *= next;
    if (op == ncclMax && next > value) value = next;
    if (op == ncclMin && next < value) value = next;
  }
  return value;
}

typedef struct {
  ncclComm_t comm;
  int rank;
  unsigned char *send, *recv, *store; /* where the data begins; its first guard */
  unsigned char *allocated;           /* what to free */
  size_t room, cases;
  size_t send_count, recv_count;
} Rank;

typedef struct {
  int collective, type, op, root, in_place;
  size_t count;
} Case;

static int from_memalloc, mixed, kept;

static unsigned char *allocate(Rank *me, size_t bytes) {
  const size_t offset = (size_t)(me->cases++ % 5) * 24;
  if (kept && me->allocated != NULL && me->room >= bytes + offset) return me->allocated + offset;
  if (me->allocated != NULL) check(ncclMemFree(me->allocated), "ncclMemFree");
  me->room = bytes + offset;
  if (from_memalloc && (!mixed || me->rank % 2 == 1)) {
    void *memory = NULL;
    check(ncclMemAlloc(&memory, me->room), "ncclMemAlloc");
    me->allocated = memory;
    return me->allocated + offset;
  }
  me->allocated = NULL;
  return malloc(bytes);
}

static void release(Rank *me) {
  if (me->allocated == NULL) free(me->store);
  if (me->allocated == NULL || (kept && me->cases % 3 != 0)) return;
  check(ncclMemFree(me->allocated), "ncclMemFree");
  me->allocated = NULL;
}

static void prepare(Rank *me, const Case *c) {
  const size_t size = (size_t)sizes[c->type], n = (size_t)nranks, mine = (size_t)me->rank * c->count * size;
  size_t i, total, first;
  me->send_count = c->collective == REDUCE_SCATTER ? c->count * n : c->count;
  me->recv_count = c->collective == ALL_GATHER ? c->count * n : c->count;
  total = (me->send_count + me->recv_count) * size + 3 * GUARD;
  me->store = allocate(me, total);
  memset(me->store, guard, total);
  me->send = me->store + GUARD;
  me->recv = me->send + me->send_count * size + GUARD;
  if (c->in_place) {
    me->recv = me->send;
    if (c->collective == ALL_GATHER) me->send = me->recv + mine;
    if (c->collective == REDUCE_SCATTER) me->recv = me->send + mine;
  }
  first = c->collective == ALL_GATHER ? (size_t)me->rank * c->count : 0;
  for (i = 0; i < me->send_count; ++i) {
    const int source = c->collective == BROADCAST || c->collective == BCAST ? c->root : me->rank;
    const long value =
        (c->collective == BROADCAST || c->collective == BCAST) && me->rank != c->root ? 99 : input(c->op, source, first + i);
    put(me->send + i * size, c->type, value);
  }
}

static ncclResult_t call(Rank *me, const Case *c) {
  const ncclDataType_t type = (ncclDataType_t)c->type;
  const ncclRedOp_t op = (ncclRedOp_t)c->op;
  switch (c->collective) {
    case ALL_REDUCE:
      return ncclAllReduce(me->send, me->recv, c->count, type, op, me->comm, NULL);
    case BROADCAST:
      return ncclBroadcast(me->send, me->recv, c->count, type, c->root, me->comm, NULL);
    case BCAST:
      return ncclBcast(me->recv, c->count, type, c->root, me->comm, NULL);
    case REDUCE:
      return ncclReduce(me->send, me->recv, c->count, type, op, c->root, me->comm, NULL);
    case ALL_GATHER:
      return ncclAllGather(me->send, me->recv, c->count, type, me->comm, NULL);
    default:
      return ncclReduceScatter(me->send, me->recv, c->count, type, op, me->comm, NULL);
  }
}

static size_t verify(Rank *me, const Case *c) {
  const size_t size = (size_t)sizes[c->type];
  unsigned char expected[8];
  size_t i, checked = 0;
  if (c->collective != REDUCE || me->rank == c->root) {
    for (i = 0; i < me->recv_count; ++i) {
      long value;
      if (c->collective == BROADCAST || c->collective == BCAST)
        value = input(c->op, c->root, i);
      else if (c->collective == ALL_GATHER)
        value = input(c->op, (int)(i / c->count), i);
      else if (c->collective == REDUCE_SCATTER)
        value = reduced(c->op, i + (size_t)me->rank * c->count);
      else
        value = reduced(c->op, i);
      put(expected, c->type, value);
      if (memcmp(expected, me->recv + i * size, size) != 0) {
        fprintf(stderr, "%s: rank %d, type %d, op %d, root %d, count %lu, in place %d: element %lu is wrong\n",
                names[c->collective], me->rank, c->type, c->op, c->root, (unsigned long)c->count, c->in_place,
                (unsigned long)i);
        exit(1);
      }
      ++checked;
    }
  }
  for (i = 0; i < GUARD; ++i)
    if (me->store[i] != guard) {
      fprintf(stderr, "%s: rank %d wrote before its buffer\n", names[c->collective], me->rank);
      exit(1);
    }
  release(me);
  return checked;
}

/* Runs `body` for every case; ranks that do so alike meet in the same order. */
static size_t each_case(size_t (*body)(void *, const Case *), void *context) {
  Case c;
  size_t n, checked = 0;
  for (c.collective = 0; c.collective < NCOLLECTIVES; ++c.collective) {
    const int reduces = c.collective == ALL_REDUCE || c.collective == REDUCE || c.collective == REDUCE_SCATTER;
    const int rooted = c.collective == BROADCAST || c.collective == BCAST || c.collective == REDUCE;
    for (c.type = 0; c.type < NTYPES; ++c.type)
      for (c.op = 0; c.op < (reduces ? NOPS : 1); ++c.op)
        for (c.root = 0; c.root < (rooted ? nranks : 1); ++c.root)
          for (n = 0; n < sizeof counts / sizeof *counts; ++n)
            for (c.in_place = c.collective == BCAST; c.in_place < 2; ++c.in_place) {
              /* Rooted collectives times types times counts would be many: one type per root, one root per type. */
              if (rooted && c.root != c.type % nranks && c.type != ncclFloat32) continue;
              c.count = counts[n];
              checked += body(context, &c);
            }
  }
  return checked;
}

static size_t run_one(void *context, const Case *c) {
  Rank *me = context;
  prepare(me, c);
  check(call(me, c), names[c->collective]);
  return verify(me, c);
}

static size_t run_group(void *context, const Case *c) {
  Rank *ranks = context;
  size_t checked = 0;
  int r;
  for (r = 0; r < nranks; ++r) prepare(&ranks[r], c);
  check(ncclGroupStart(), "ncclGroupStart");
  for (r = 0; r < nranks; ++r) check(call(&ranks[r], c), names[c->collective]);
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (r = 0; r < nranks; ++r) checked += verify(&ranks[r], c);
  return checked;
}

static size_t run_rank(int rank, ncclUniqueId id) {
  Rank me = {0};
  int count = 0, mine = -1;
  ncclResult_t state;
  size_t checked;
  me.rank = rank;
  check(ncclCommInitRank(&me.comm, nranks, id, rank), "ncclCommInitRank");
  check(ncclCommCount(me.comm, &count), "ncclCommCount");
  check(ncclCommUserRank(me.comm, &mine), "ncclCommUserRank");
  require(count == nranks && mine == rank, "size and rank");
  checked = each_case(run_one, &me);
  check(ncclMemFree(me.allocated), "ncclMemFree");
  check(ncclCommGetAsyncError(me.comm, &state), "ncclCommGetAsyncError");
  check(state, "the communicator");
  check(ncclCommDestroy(me.comm), "ncclCommDestroy");
  return checked;
}

int main(int argc, char **argv) {
  size_t checked = 0;
  int r;
  if (argc < 3 || argc > 4 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  mixed = argc == 4 && strcmp(argv[3], "mixed") == 0;
  kept = argc == 4 && strcmp(argv[3], "kept") == 0;
  from_memalloc = mixed || kept || (argc == 4 && strcmp(argv[3], "memalloc") == 0);
  if (strcmp(argv[1], "thread") == 0) {
    ncclComm_t comms[MOST_RANKS];
    Rank ranks[MOST_RANKS] = {{0}};
    check(ncclCommInitAll(comms, nranks, NULL), "ncclCommInitAll");
    for (r = 0; r < nranks; ++r) ranks[r].comm = comms[r], ranks[r].rank = r;
    checked = each_case(run_group, ranks);
    for (r = 0; r < nranks; ++r) check(ncclCommDestroy(comms[r]), "ncclCommDestroy");
    for (r = 0; r < nranks; ++r) check(ncclMemFree(ranks[r].allocated), "ncclMemFree");
  } else {
    checked = strcmp(argv[1], "threads") == 0 ? run_threads(run_rank) : run_processes(run_rank);
  }
  printf("%lu elements right\n", (unsigned long)checked);
  return 0;
}
