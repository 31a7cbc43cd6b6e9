/* Checks what every NCCL call of a program leaves in its buffers. Preloaded, it stands between the program and a library
 * of the host target: fills what a call sends with numbers that follow from rank and position alone, poisons what it
 * receives, calls the library under the function's other name (pnccl...), and compares when the call, or its group, is
 * done. So it suits programs that do not care about their data: nccl-tests with -c 0.
 *
 * At the end of the process one line with the counts goes to the file that COLLC_CHECKED_CALLS names.
 *
 * Every rank can tell what all others send, so the ranks may be threads or processes. Integers are small enough to be exact
 * in every type, 8-bit floats included, in any order. Collectives that only move data carry arbitrary bytes.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COMMS = 256, MAX_RANKS = 1024, POISON = 0xa5, SEND_RECV = 1 << 24 };

/* A communicator's place in the sequence of its calls, which is the same on all its ranks. */
struct state {
  ncclComm_t comm;
  int rank, nranks;
  unsigned calls, sent[MAX_RANKS], received[MAX_RANKS];
};

/* What a region of memory must hold when the group is done. */
struct expectation {
  enum { BYTES, INPUT, REDUCED, UNTOUCHED } how;
  const struct state *state;
  const char *call;
  const unsigned char *at;
  size_t count, first; /* in elements; for BYTES in bytes */
  ncclDataType_t type;
  int op, key; /* key: who sent the bytes to whom, or whose input it is */
  unsigned number;
  int transfer, sent; /* of ncclSend, ncclRecv or ncclAlltoAll, where a caller can receive into what it sends */
};

static struct state states[MAX_COMMS];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long checked, elements, wrong, skipped;

static __thread int depth;
static __thread struct expectation *pending;
static __thread size_t pendings, room;

static struct state *state_of(ncclComm_t comm) {
  struct state *found = NULL;
  pthread_mutex_lock(&lock);
  for (int k = 0; k < used && found == NULL; ++k)
    if (states[k].comm == comm) found = &states[k];
  if (found == NULL) {
    for (int k = 0; k < used && found == NULL; ++k)
      if (states[k].comm == NULL) found = &states[k];
    if (found == NULL && used < MAX_COMMS) found = &states[used++];
    if (found == NULL) abort();
    memset(found, 0, sizeof *found);
    found->comm = comm;
    if (pncclCommUserRank(comm, &found->rank) || pncclCommCount(comm, &found->nranks)) abort();
    if (found->nranks > MAX_RANKS) abort();
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static void forget(ncclComm_t comm) {
  pthread_mutex_lock(&lock);
  for (int k = 0; k < used; ++k)
    if (states[k].comm == comm) states[k].comm = NULL;
  pthread_mutex_unlock(&lock);
}

/* Data */

static size_t size_of(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

static unsigned mixed(size_t i, int key, unsigned number) {
  unsigned long long x = i * 0x9e3779b97f4a7c15ull + (unsigned)key * 0xc2b2ae3d27d4eb4full;
  x += number * 0x165667b19e3779f9ull;
  x ^= x >> 29;
  return (unsigned)((x * 0xbf58476d1ce4e5b9ull) >> 40);
}

/* One rank's input of a reduction: no sum beyond 8, no product beyond 4. */
static int value(const struct expectation *e, int rank, size_t i) {
  const int n = e->state->nranks, turn = (int)((i + (unsigned)rank + e->number) % (unsigned)n);
  const int any = (int)mixed(i, rank, e->number);
  switch (e->op) {
    case ncclProd:
      return turn < 2 ? 1 + any % 2 : 1;
    case ncclMax:
    case ncclMin:
      return any % 5;
    case ncclAvg:
      return turn == 0 ? n * (any % 2) : 0;
    default:
      return turn < 4 ? any % 2 : 0;
  }
}

static int reduced(const struct expectation *e, size_t i) {
  int result = value(e, 0, i);
  for (int rank = 1; rank < e->state->nranks; ++rank) {
    const int one = value(e, rank, i);
    switch (e->op) {
      case ncclSum:
      case ncclAvg:
        result += one;
        break;
      case ncclProd:
        result *= one;
        break;
      case ncclMax:
        result = one > result ? one : result;
        break;
      case ncclMin:
        result = one < result ? one : result;
        break;
      default: /* nccl-tests multiplies every other rank's input by 2 (ncclVerifiablePremulScalar) */
        result += one * (1 + rank % 2);
    }
  }
  return e->op == ncclAvg ? result / e->state->nranks : result;
}

/* A small integer as a float of so many exponent and mantissa bits. */
static unsigned small_float(int v, int exponent_bits, int mantissa_bits) {
  int exponent = 0;
  if (v == 0) return 0;
  while (v >> (exponent + 1)) ++exponent;
  const unsigned bias = (1u << (exponent_bits - 1)) - 1, mantissa = (unsigned)v << mantissa_bits >> exponent;
  return ((unsigned)exponent + bias) << mantissa_bits | (mantissa & ((1u << mantissa_bits) - 1));
}

static void encode(unsigned char *to, ncclDataType_t type, int v) {
  const long long wide = v;
  const double number = v;
  const float single = (float)v;
  unsigned bits = 0;
  switch (type) {
    case ncclFloat32:
      memcpy(to, &single, sizeof single);
      return;
    case ncclFloat64:
      memcpy(to, &number, sizeof number);
      return;
    case ncclFloat16:
      bits = small_float(v, 5, 10);
      break;
    case ncclBfloat16:
      bits = small_float(v, 8, 7);
      break;
    case ncclFloat8e4m3:
      bits = small_float(v, 4, 3);
      break;
    case ncclFloat8e5m2:
      bits = small_float(v, 5, 2);
      break;
    default:
      memcpy(to, &wide, size_of(type)); /* little endian */
      return;
  }
  memcpy(to, &bits, size_of(type));
}

/* The bytes of element i of a region. */
static size_t right_element(const struct expectation *e, size_t i, unsigned char *to) {
  if (e->how == UNTOUCHED) return *to = POISON, (size_t)1;
  if (e->how == BYTES) return *to = (unsigned char)mixed(e->first + i, e->key, e->number), (size_t)1;
  encode(to, e->type, e->how == INPUT ? value(e, e->key, e->first + i) : reduced(e, e->first + i));
  return size_of(e->type);
}

static void expect(struct expectation e) {
  if (pendings == room) {
    room = room ? 2 * room : 64;
    pending = realloc(pending, room * sizeof *pending);
    if (pending == NULL) abort();
  }
  pending[pendings++] = e;
}

/* Writes what a region must hold, as the sender of it, and expects to find it there afterwards. */
static void send_region(struct expectation e, int may_change) {
  unsigned char *to = (unsigned char *)e.at;
  for (size_t i = 0; i < e.count; ++i) to += right_element(&e, i, to);
  if (!may_change) expect(e);
}

static void compare(const struct expectation *e) {
  unsigned char right[8];
  size_t at = 0, bad = 0, first = 0;
  for (size_t i = 0; i < e->count; ++i) {
    const size_t size = right_element(e, i, right);
    if (memcmp(e->at + at, right, size) != 0 && bad++ == 0) first = i;
    at += size;
  }
  __atomic_add_fetch(&elements, e->count, __ATOMIC_RELAXED);
  if (bad == 0) return;
  if (__atomic_fetch_add(&wrong, bad, __ATOMIC_RELAXED) == 0)
    fprintf(stderr, "checked_calls: %s, rank %d of %d, type %d, op %d, call %u: %zu of %zu wrong, the first is %zu\n", e->call,
            e->state->rank, e->state->nranks, e->type, e->op, e->number, bad, e->count, first);
}

static int overlap(const struct expectation *a, const struct expectation *b) {
  return a->at < b->at + b->count && b->at < a->at + a->count;
}

/* True where a group receives into what it also sends: what arrives then depends on timing, and that is the caller's. */
static int racing(const struct state *state) {
  for (size_t s = 0; s < pendings; ++s)
    for (size_t r = 0; r < pendings; ++r)
      if (pending[s].sent && !pending[r].sent && pending[s].transfer && pending[r].transfer && pending[s].state == state &&
          pending[r].state == state && overlap(&pending[s], &pending[r]))
        return 1;
  return 0;
}

static ncclResult_t settle(ncclResult_t result) {
  if (depth > 0) return result;
  const struct state *asked = NULL;
  int races = 0;
  for (size_t k = 0; k < pendings && result == ncclSuccess; ++k) {
    if (pending[k].transfer && pending[k].state != asked) races = racing(asked = pending[k].state);
    if (pending[k].transfer && races) {
      __atomic_add_fetch(&skipped, 1, __ATOMIC_RELAXED);
    } else {
      compare(&pending[k]);
      __atomic_add_fetch(&checked, 1, __ATOMIC_RELAXED);
    }
  }
  pendings = 0;
  return result;
}

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("COLLC_CHECKED_CALLS");
  FILE *file = path != NULL && checked + skipped > 0 ? fopen(path, "a") : NULL;
  if (file == NULL) return;
  fprintf(file, "checked %llu regions, %llu elements, %llu wrong, %llu skipped\n", checked, elements, wrong, skipped);
  fclose(file);
}

/* The calls */

static struct expectation region(const char *call, struct state *state, const void *at, size_t count, ncclDataType_t type) {
  struct expectation e;
  memset(&e, 0, sizeof e);
  e.state = state, e.call = call, e.at = at, e.count = count, e.type = type, e.number = state->calls;
  return e;
}

static struct expectation bytes(const char *call, struct state *state, const void *at, size_t size, int key) {
  struct expectation e = region(call, state, at, size, ncclUint8);
  e.key = key;
  return e;
}

static struct expectation numbers(const char *call, struct state *state, const void *at, size_t count, ncclDataType_t type,
                                  int op, size_t first) {
  struct expectation e = region(call, state, at, count, type);
  e.how = REDUCED, e.op = op, e.first = first;
  return e;
}

static void send_numbers(const char *call, struct state *state, const void *at, size_t count, ncclDataType_t type, int op,
                         int in_place) {
  struct expectation e = numbers(call, state, at, count, type, op, 0);
  e.how = INPUT, e.key = state->rank;
  send_region(e, in_place);
}

static int pair(int from, int to) { return from * MAX_RANKS + to; }
static unsigned char *block(const void *base, size_t size, int k) { return (unsigned char *)base + size * (size_t)k; }

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  struct state *state = state_of(comm);
  memset(recv, POISON, count * size_of(type));
  send_numbers("ncclAllReduce", state, send, count, type, (int)op, send == recv);
  expect(numbers("ncclAllReduce", state, recv, count, type, (int)op, 0));
  ++state->calls;
  return settle(pncclAllReduce(send, recv, count, type, op, comm, stream));
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  struct state *state = state_of(comm);
  const int in_place = send == recv;
  if (!in_place) memset(recv, POISON, count * size_of(type));
  send_numbers("ncclReduce", state, send, count, type, (int)op, in_place);
  if (state->rank == root) {
    expect(numbers("ncclReduce", state, recv, count, type, (int)op, 0));
  } else if (!in_place) {
    struct expectation e = bytes("ncclReduce", state, recv, count * size_of(type), 0);
    e.how = UNTOUCHED;
    expect(e);
  }
  ++state->calls;
  return settle(pncclReduce(send, recv, count, type, op, root, comm, stream));
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  struct state *state = state_of(comm);
  const size_t first = count * (size_t)state->rank;
  const int in_place = recv == block(send, count * size_of(type), state->rank);
  memset(recv, POISON, count * size_of(type));
  send_numbers("ncclReduceScatter", state, send, count * (size_t)state->nranks, type, (int)op, in_place);
  expect(numbers("ncclReduceScatter", state, recv, count, type, (int)op, first));
  ++state->calls;
  return settle(pncclReduceScatter(send, recv, count, type, op, comm, stream));
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  struct state *state = state_of(comm);
  const size_t size = count * size_of(type);
  memset(recv, POISON, size * (size_t)state->nranks);
  send_region(bytes("ncclAllGather", state, send, size, state->rank), 0);
  for (int r = 0; r < state->nranks; ++r) expect(bytes("ncclAllGather", state, block(recv, size, r), size, r));
  ++state->calls;
  return settle(pncclAllGather(send, recv, count, type, comm, stream));
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  struct state *state = state_of(comm);
  const size_t size = count * size_of(type);
  memset(recv, POISON, size);
  if (state->rank == root) send_region(bytes("ncclBroadcast", state, send, size, root), 0);
  expect(bytes("ncclBroadcast", state, recv, size, root));
  ++state->calls;
  return settle(pncclBroadcast(send, recv, count, type, root, comm, stream));
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  struct state *state = state_of(comm);
  const size_t size = count * size_of(type);
  if (state->rank == root) memset(recv, POISON, size * (size_t)state->nranks);
  send_region(bytes("ncclGather", state, send, size, state->rank), 0);
  for (int r = 0; state->rank == root && r < state->nranks; ++r)
    expect(bytes("ncclGather", state, block(recv, size, r), size, r));
  ++state->calls;
  return settle(pncclGather(send, recv, count, type, root, comm, stream));
}

ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  struct state *state = state_of(comm);
  const size_t size = count * size_of(type);
  memset(recv, POISON, size);
  for (int r = 0; state->rank == root && r < state->nranks; ++r)
    send_region(bytes("ncclScatter", state, block(send, size, r), size, r), 0);
  expect(bytes("ncclScatter", state, recv, size, state->rank));
  ++state->calls;
  return settle(pncclScatter(send, recv, count, type, root, comm, stream));
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  struct state *state = state_of(comm);
  const size_t size = count * size_of(type);
  memset(recv, POISON, size * (size_t)state->nranks);
  for (int r = 0; r < state->nranks; ++r) {
    struct expectation out = bytes("ncclAlltoAll", state, block(send, size, r), size, pair(state->rank, r));
    out.transfer = out.sent = 1;
    send_region(out, 0);
  }
  for (int r = 0; r < state->nranks; ++r) {
    struct expectation in = bytes("ncclAlltoAll", state, block(recv, size, r), size, pair(r, state->rank));
    in.transfer = 1;
    expect(in);
  }
  ++state->calls;
  return settle(pncclAlltoAll(send, recv, count, type, comm, stream));
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  struct state *state = state_of(comm);
  struct expectation e = bytes("ncclSend", state, send, count * size_of(type), SEND_RECV + pair(state->rank, peer));
  e.transfer = e.sent = 1;
  e.number = state->sent[peer]++;
  send_region(e, 0);
  return settle(pncclSend(send, count, type, peer, comm, stream));
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  struct state *state = state_of(comm);
  struct expectation e = bytes("ncclRecv", state, recv, count * size_of(type), SEND_RECV + pair(peer, state->rank));
  e.transfer = 1;
  e.number = state->received[peer]++;
  expect(e);
  return settle(pncclRecv(recv, count, type, peer, comm, stream));
}

ncclResult_t ncclGroupStart(void) {
  ++depth;
  return pncclGroupStart();
}

ncclResult_t ncclGroupEnd(void) {
  --depth;
  return settle(pncclGroupEnd());
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  forget(comm);
  return pncclCommDestroy(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  forget(comm);
  return pncclCommAbort(comm);
}
