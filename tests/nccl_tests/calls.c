/* Calls everything that nccl-tests' programs call, as they do: `gpus N`, one thread with N ranks, their calls in groups;
 * `threads N`, one rank per thread. Does not look at its data: that is what checked_calls is tried on.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **made, size_t size);
int cudaFree(void *freed);
int cudaSetDevice(int device);
int cudaStreamCreateWithFlags(void **made, unsigned flags);
int cudaStreamQuery(void *stream);

enum { MAX = 16, COUNT = 1003, ROOM = MAX * COUNT * 8 };

static ncclComm_t comms[MAX];
static void *send_buffers[MAX], *recv_buffers[MAX];
static cudaStream_t streams[MAX];
static int nranks;

static void check(ncclResult_t result, int line) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "calls.c:%d: %s / %s\n", line, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}
#define CHECK(call) check(call, __LINE__)

static void reductions(int r, int which, ncclDataType_t type, ncclRedOp_t op, int in_place) {
  char *recv = recv_buffers[r], *send = in_place ? recv : send_buffers[r];
  const size_t size = (size_t)COUNT * (type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2);
  switch (which) {
    case 0:
      CHECK(ncclAllReduce(send, recv, COUNT, type, op, comms[r], streams[r]));
      break;
    case 1:
      CHECK(ncclReduce(send, recv, COUNT, type, op, 1, comms[r], streams[r]));
      break;
    default:
      CHECK(ncclReduceScatter(send, recv + (in_place ? size * (size_t)r : 0), COUNT, type, op, comms[r], streams[r]));
  }
}

static void movements(int r, int which, int in_place) {
  char *recv = recv_buffers[r], *send = in_place ? recv : send_buffers[r];
  const int root = nranks - 1, next = (r + 1) % nranks, last = (r + nranks - 1) % nranks;
  const size_t mine = in_place ? (size_t)COUNT * (size_t)r : 0;
  switch (which) {
    case 0:
      CHECK(ncclAllGather(send + mine, recv, COUNT, ncclInt8, comms[r], streams[r]));
      break;
    case 1:
      CHECK(ncclBroadcast(send, recv, COUNT, ncclInt32, root, comms[r], streams[r]));
      break;
    case 2:
      CHECK(ncclGather(send + mine, recv, COUNT, ncclInt8, root, comms[r], streams[r]));
      break;
    case 3:
      CHECK(ncclScatter(send, recv + (r == root ? mine : 0), COUNT, ncclInt8, root, comms[r], streams[r]));
      break;
    case 4:
      CHECK(ncclAlltoAll(send, recv, COUNT, ncclFloat16, comms[r], streams[r]));
      break;
    default:
      CHECK(ncclGroupStart());
      CHECK(ncclSend(send, COUNT, ncclInt64, next, comms[r], streams[r]));
      CHECK(ncclRecv(recv, COUNT, ncclInt64, last, comms[r], streams[r]));
      CHECK(ncclGroupEnd());
  }
}

static void all_calls(int first, int ranks) {
  static const ncclDataType_t types[] = {ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16};
  for (int in_place = 0; in_place < 2; ++in_place) {
    for (int k = 0; k < 3 * 4 * 5; ++k) {
      CHECK(ncclGroupStart());
      for (int r = first; r < first + ranks; ++r) {
        cudaSetDevice(r);
        reductions(r, k % 3, types[k / 15], (ncclRedOp_t)(k / 3 % 5), in_place);
      }
      CHECK(ncclGroupEnd());
    }
    for (int which = 0; which < 6; ++which) {
      CHECK(ncclGroupStart());
      for (int r = first; r < first + ranks; ++r) movements(r, which, in_place);
      CHECK(ncclGroupEnd());
    }
  }
  for (int r = first; r < first + ranks; ++r)
    if (cudaStreamQuery(streams[r])) exit(1);
}

static void *one_thread(void *rank) {
  all_calls((int)(size_t)rank, 1);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[MAX];
  ncclUniqueId id;
  if (argc != 3 || (nranks = atoi(argv[2])) < 2 || nranks > MAX) return 2;
  const int together = strcmp(argv[1], "gpus") == 0;
  CHECK(ncclGetUniqueId(&id));
  CHECK(ncclGroupStart());
  for (int r = 0; r < nranks; ++r) CHECK(ncclCommInitRank(&comms[r], nranks, id, r));
  CHECK(ncclGroupEnd());
  for (int r = 0; r < nranks; ++r)
    if (cudaMalloc(&send_buffers[r], ROOM) || cudaMalloc(&recv_buffers[r], ROOM) ||
        cudaStreamCreateWithFlags((void **)&streams[r], 1))
      return 1;
  if (together) all_calls(0, nranks);
  for (int r = 0; !together && r < nranks; ++r) pthread_create(&threads[r], NULL, one_thread, (void *)(size_t)r);
  for (int r = 0; !together && r < nranks; ++r) pthread_join(threads[r], NULL);
  for (int r = 0; r < nranks; ++r) {
    CHECK(ncclCommDestroy(comms[r]));
    cudaFree(send_buffers[r]), cudaFree(recv_buffers[r]);
  }
  return 0;
}
