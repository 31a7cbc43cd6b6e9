/* A library that is almost right: every all-reduce and every received message of it gets one wrong byte, the last one.
 * Preloaded behind checked_calls, which has to notice.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <string.h>

static __thread unsigned char *spoiled[64];
static __thread int count, depth;

static size_t size_of(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static ncclResult_t spoil(ncclResult_t result) {
  if (depth > 0) return result;
  for (; count > 0; --count) *spoiled[count - 1] ^= 1;
  return result;
}

static void remember(void *recv, size_t size) {
  if (count < 64 && size > 0) spoiled[count++] = (unsigned char *)recv + size - 1;
}

ncclResult_t pncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream) {
  ncclResult_t (*real)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
  *(void **)&real = next("pncclAllReduce");
  remember(recv, n * size_of(type));
  return spoil(real(send, recv, n, type, op, comm, stream));
}

ncclResult_t pncclRecv(void *recv, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t (*real)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
  *(void **)&real = next("pncclRecv");
  remember(recv, n * size_of(type));
  return spoil(real(recv, n, type, peer, comm, stream));
}

ncclResult_t pncclGroupStart(void) {
  ncclResult_t (*real)(void);
  *(void **)&real = next("pncclGroupStart");
  ++depth;
  return real();
}

ncclResult_t pncclGroupEnd(void) {
  ncclResult_t (*real)(void);
  *(void **)&real = next("pncclGroupEnd");
  --depth;
  return spoil(real());
}
