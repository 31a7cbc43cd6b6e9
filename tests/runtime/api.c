/* The parts of the API beside the five collectives: transfers and what is made of them, scaled sums, groups of mixed calls,
 * splits, configurations, memory, several communicators at a time. Run as `api threads N` or `api processes N`.
 */
#include "launch.h"

enum { COUNT = 100003 };

/* Waits until a communicator whose creation does not block is there. */
static void settle(ncclComm_t comm, ncclResult_t started) {
  ncclResult_t state = ncclInProgress;
  if (started != ncclInProgress) check(started, "creating a communicator");
  while (comm != NULL && state == ncclInProgress) {
    check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    if (state == ncclInProgress) usleep(1000);
  }
  if (comm != NULL) check(state, "the communicator");
}

static ncclComm_t make(int rank, ncclUniqueId id, int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  ncclResult_t state;
  config.blocking = blocking;
  config.minCTAs = 1;
  config.maxCTAs = 4;
  state = ncclCommInitRankConfig(&comm, nranks, id, rank, &config);
  require(blocking || state == ncclInProgress, "a creation that does not block is in progress");
  settle(comm, state);
  return comm;
}

static size_t transfers(ncclComm_t comm, int rank) {
  float *send = malloc(COUNT * (size_t)nranks * sizeof *send), *recv = malloc(COUNT * (size_t)nranks * sizeof *recv);
  const int next = (rank + 1) % nranks, previous = (rank + nranks - 1) % nranks;
  size_t i, checked = 0;
  int r;
  for (i = 0; i < COUNT * (size_t)nranks; ++i) send[i] = (float)(rank * 1000 + (int)(i % 997)), recv[i] = -1;
  /* A ring of sends and receives, far more than a queue holds; to oneself too if there is one rank. */
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(send, COUNT, ncclFloat32, next, comm, NULL), "ncclSend");
  check(ncclRecv(recv, COUNT, ncclFloat32, previous, comm, NULL), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (i = 0; i < COUNT; ++i) require(recv[i] == (float)(previous * 1000 + (int)(i % 997)), "ncclRecv"), ++checked;
  /* Two sends to one peer keep their order. */
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(send, 10, ncclFloat32, next, comm, NULL), "ncclSend");
  check(ncclSend(send + 10, 50000, ncclFloat32, next, comm, NULL), "ncclSend");
  check(ncclRecv(recv, 10, ncclFloat32, previous, comm, NULL), "ncclRecv");
  check(ncclRecv(recv + 10, 50000, ncclFloat32, previous, comm, NULL), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (i = 0; i < 50010; ++i) require(recv[i] == (float)(previous * 1000 + (int)(i % 997)), "order of sends"), ++checked;

  check(ncclAlltoAll(send, recv, COUNT, ncclFloat32, comm, NULL), "ncclAlltoAll");
  for (r = 0; r < nranks; ++r)
    for (i = 0; i < COUNT; ++i)
      require(recv[(size_t)r * COUNT + i] == (float)(r * 1000 + (int)(((size_t)rank * COUNT + i) % 997)), "ncclAlltoAll"),
          ++checked;
  for (r = 0; r < nranks; ++r) {
    for (i = 0; i < COUNT * (size_t)nranks; ++i) recv[i] = -1;
    check(ncclGather(send, recv, COUNT, ncclFloat32, r, comm, NULL), "ncclGather");
    for (i = 0; i < COUNT * (size_t)nranks; ++i)
      require(recv[i] == (r == rank ? (float)((int)(i / COUNT) * 1000 + (int)(i % COUNT % 997)) : -1), "ncclGather"), ++checked;
    check(ncclScatter(send, recv, COUNT, ncclFloat32, r, comm, NULL), "ncclScatter");
    for (i = 0; i < COUNT; ++i)
      require(recv[i] == (float)(r * 1000 + (int)(((size_t)rank * COUNT + i) % 997)), "ncclScatter"), ++checked;
  }
  /* In place, as NCCL defines it. */
  for (i = 0; i < COUNT; ++i) recv[(size_t)rank * COUNT + i] = (float)rank;
  check(ncclGather(recv + (size_t)rank * COUNT, recv, COUNT, ncclFloat32, 0, comm, NULL), "ncclGather");
  if (rank == 0)
    for (i = 0; i < COUNT * (size_t)nranks; ++i) require(recv[i] == (float)(int)(i / COUNT), "ncclGather in place"), ++checked;
  /* Collectives and transfers in one group. */
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclAllReduce(send, recv, 1000, ncclFloat32, ncclMax, comm, NULL), "ncclAllReduce");
  check(ncclSend(send, COUNT - 2000, ncclFloat32, next, comm, NULL), "ncclSend");
  check(ncclAllReduce(send, recv + 1000, 1000, ncclFloat32, ncclMin, comm, NULL), "ncclAllReduce");
  check(ncclRecv(recv + 2000, COUNT - 2000, ncclFloat32, previous, comm, NULL), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (i = 0; i < 1000; ++i) {
    require(recv[i] == (float)((nranks - 1) * 1000 + (int)(i % 997)), "max in a group");
    require(recv[1000 + i] == (float)(int)(i % 997), "min in a group");
  }
  for (i = 0; i < COUNT - 2000; ++i)
    require(recv[2000 + i] == (float)(previous * 1000 + (int)(i % 997)), "receive in a group"), ++checked;
  free(send);
  free(recv);
  return checked;
}

static size_t scaled(ncclComm_t comm, int rank) {
  const double factor = rank + 1;
  double deferred = 0, expected = 0;
  unsigned char *mine = NULL;
  double *data;
  ncclRedOp_t now, later;
  size_t i;
  int r;
  check(ncclMemAlloc((void **)&data, COUNT * sizeof *data), "ncclMemAlloc");
  check(ncclCommRegister(comm, data, COUNT * sizeof *data, (void **)&mine), "ncclCommRegister");
  check(ncclRedOpCreatePreMulSum(&now, (void *)&factor, ncclFloat64, ncclScalarHostImmediate, comm),
        "ncclRedOpCreatePreMulSum");
  check(ncclRedOpCreatePreMulSum(&later, &deferred, ncclFloat64, ncclScalarDevice, comm), "ncclRedOpCreatePreMulSum");
  require(now >= ncclNumOps && later >= ncclNumOps && now != later, "handles of operators");
  for (r = 0; r < nranks; ++r) expected += (r + 1.0) * (r + 2.0);
  for (i = 0; i < COUNT; ++i) data[i] = rank + 2;
  check(ncclAllReduce(data, data, COUNT, ncclFloat64, now, comm, NULL), "ncclAllReduce");
  for (i = 0; i < COUNT; ++i) require(data[i] == expected, "a scaled sum");
  for (i = 0; i < COUNT; ++i) data[i] = rank + 2;
  deferred = factor; /* read when the call runs */
  check(ncclAllReduce(data, data, COUNT, ncclFloat64, later, comm, NULL), "ncclAllReduce");
  for (i = 0; i < COUNT; ++i) require(data[i] == expected, "a scaled sum whose factor is read late");
  require(ncclAllReduce(data, data, COUNT, ncclFloat32, now, comm, NULL) == ncclInvalidArgument, "an operator of another type");
  check(ncclRedOpDestroy(now, comm), "ncclRedOpDestroy");
  require(ncclRedOpDestroy(now, comm) == ncclInvalidArgument, "an operator destroyed twice");
  check(ncclRedOpDestroy(later, comm), "ncclRedOpDestroy");
  check(ncclCommDeregister(comm, mine), "ncclCommDeregister");
  check(ncclMemFree(data), "ncclMemFree");
  return 2 * COUNT;
}

/* Colors that leave one rank alone, one in no part, and the rest together in reverse order; only parts of 1 rank and of
 * all ranks are served by a library for one number of GPUs. */
static size_t splits(ncclComm_t comm, int rank) {
  ncclComm_t part = NULL, all = NULL;
  int value = rank, size = 0, mine = -1;
  ncclResult_t started = ncclCommSplit(comm, rank == 0 ? 7 : NCCL_SPLIT_NOCOLOR, 0, &part, NULL);
  settle(part, started);
  require((part != NULL) == (rank == 0), "no color, no communicator");
  if (part != NULL) {
    check(ncclCommCount(part, &size), "ncclCommCount");
    require(size == 1, "a part of one rank");
    check(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, part, NULL), "ncclAllReduce");
    require(value == 0, "a reduction over one rank");
    check(ncclCommDestroy(part), "ncclCommDestroy");
  }
  started = ncclCommSplit(comm, 3, -rank, &all, NULL);
  settle(all, started);
  check(ncclCommUserRank(all, &mine), "ncclCommUserRank");
  require(mine == nranks - 1 - rank, "the order of a split");
  value = mine == 0 ? 42 : 0;
  check(ncclBroadcast(&value, &value, 1, ncclInt32, 0, all, NULL), "ncclBroadcast");
  require(value == 42, "a broadcast in a split");
  /* Parent and child in one group. */
  value = 1;
  size = 2;
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
  check(ncclAllReduce(&size, &size, 1, ncclInt32, ncclSum, all, NULL), "ncclAllReduce");
  check(ncclGroupEnd(), "ncclGroupEnd");
  require(value == nranks && size == 2 * nranks, "two communicators in one group");
  settle(all, ncclCommFinalize(all));
  check(ncclCommDestroy(all), "ncclCommDestroy");
  return 1;
}

/* Several splits of one communicator at once, as threads of the library make them: in one group, without blocking, and one
 * that is aborted on all ranks while it comes. */
static size_t several_splits(ncclComm_t comm, int rank) {
  enum { PARTS = 4 };
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t parts[2 * PARTS] = {NULL}, given_up = NULL;
  ncclResult_t started[2 * PARTS], ended;
  int i, mine = -1;
  config.blocking = 0;
  check(ncclGroupStart(), "ncclGroupStart");
  for (i = 0; i < PARTS; ++i) ncclCommSplit(comm, 1, i % 2 == 0 ? rank : -rank, &parts[i], NULL);
  ended = ncclGroupEnd();
  for (i = 0; i < PARTS; ++i) settle(parts[i], ended);
  for (i = PARTS; i < 2 * PARTS; ++i) started[i] = ncclCommSplit(comm, 1, i % 2 == 0 ? rank : -rank, &parts[i], &config);
  require(ncclCommSplit(comm, 1, rank, &given_up, &config) == ncclInProgress, "a split that does not block is in progress");
  for (i = PARTS; i < 2 * PARTS; ++i) settle(parts[i], started[i]);
  check(ncclCommAbort(given_up), "ncclCommAbort");
  for (i = 0; i < 2 * PARTS; ++i) {
    int value = rank;
    check(ncclCommUserRank(parts[i], &mine), "ncclCommUserRank");
    require(mine == (i % 2 == 0 ? rank : nranks - 1 - rank), "the order of one of several splits");
    check(ncclAllReduce(&value, &value, 1, ncclInt32, ncclMax, parts[i], NULL), "ncclAllReduce");
    require(value == nranks - 1, "a reduction in one of several splits");
  }
  for (i = 0; i < 2 * PARTS; ++i) check(ncclCommDestroy(parts[i]), "ncclCommDestroy");
  return 2 * PARTS;
}

static void refusals(ncclComm_t comm) {
  float x[4] = {0};
  int number = 0;
  ncclComm_t gone = (ncclComm_t)(void *)x;
  ncclWindow_t window = (ncclWindow_t)(void *)x;
  extern ncclResult_t ncclSignal(int, int, int, unsigned int, ncclComm_t, cudaStream_t);
  require(ncclAllReduce(NULL, x, 1, ncclFloat32, ncclSum, comm, NULL) == ncclInvalidArgument, "a null buffer");
  require(ncclAllReduce(x, x, 1, (ncclDataType_t)99, ncclSum, comm, NULL) == ncclInvalidArgument, "a type");
  require(ncclAllReduce(x, x, 1, ncclFloat32, (ncclRedOp_t)77, comm, NULL) == ncclInvalidArgument, "an operation");
  require(ncclBroadcast(x, x, 1, ncclFloat32, nranks, comm, NULL) == ncclInvalidArgument, "a root");
  require(ncclSend(x, 1, ncclFloat32, -1, comm, NULL) == ncclInvalidArgument, "a peer");
  require(ncclAllReduce(x, x, (size_t)-1, ncclFloat32, ncclSum, comm, NULL) == ncclInvalidArgument, "a count");
  require(ncclCommCount(gone, &number) == ncclInvalidArgument, "a handle that never was one");
  require(ncclCommCount(NULL, &number) == ncclInvalidArgument, "no handle");
  require(ncclGroupEnd() == ncclInvalidUsage, "an end without a start");
  require(ncclCommWindowRegister(comm, x, 16, &window, 0) == ncclSuccess && window == NULL, "windows");
  require(ncclSignal(0, 0, 0, 0, comm, NULL) == ncclInvalidUsage, "signals");
  require(strstr(ncclGetLastError(NULL), "not supported") != NULL, "the words of the last error");
  require(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, NULL) == ncclSuccess, "a count of 0");
  check(ncclGroupStart(), "ncclGroupStart");
  require(ncclBroadcast(x, x, 1, ncclFloat32, -1, comm, NULL) == ncclInvalidArgument, "a root in a group");
  require(ncclGroupEnd() == ncclInvalidArgument, "a group with an error in it");
}

static size_t body(int rank, ncclUniqueId id) {
  size_t checked = 0;
  int version = 0;
  ncclComm_t comm = make(rank, id, rank % 2 == 0);
  check(ncclGetVersion(&version), "ncclGetVersion");
  require(version == NCCL_VERSION_CODE, "the version");
  checked += transfers(comm, rank);
  checked += scaled(comm, rank);
  checked += splits(comm, rank);
  checked += several_splits(comm, rank);
  refusals(comm);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  require(ncclCommDestroy(comm) == ncclInvalidArgument, "destroyed twice");
  return checked;
}

int main(int argc, char **argv) {
  if (argc != 3 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  printf("%lu elements right\n", (unsigned long)(strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body)));
  return 0;
}
