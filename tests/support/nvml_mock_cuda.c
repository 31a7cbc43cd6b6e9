/* A libcuda.so.1 with as many GPUs as CUDA_MOCK_GPUS says (buses 0000:06:00.0 and up): memory is host memory, a peer copy
 * is a memcpy. CUDA_MOCK_FAIL names a function that fails with 999; with CUDA_MOCK_PEER=0 no GPU reaches another directly,
 * and then enabling it is an error, as on real drivers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int enabled[32][32];
static int contexts[32];
static int now = -1;

static int gpus(void) {
  const char *text = getenv("CUDA_MOCK_GPUS");
  return text ? atoi(text) : 0;
}

static int peers(void) {
  const char *text = getenv("CUDA_MOCK_PEER");
  return !text || strcmp(text, "0") != 0;
}

static int fails(const char *name) {
  const char *text = getenv("CUDA_MOCK_FAIL");
  return text && !strcmp(text, name) ? 999 : 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return fails("cuInit");
}

int cuDeviceGetByPCIBusId(int *device, const char *bus) {
  unsigned domain, number;
  if (sscanf(bus, "%x:%x:00.0", &domain, &number) != 2 || number < 6 || number >= 6u + (unsigned)gpus()) return 101;
  *device = (int)number - 6;
  return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  contexts[device] = device;
  *context = &contexts[device];
  return 0;
}

int cuCtxSetCurrent(void *context) {
  now = *(int *)context;
  return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  *address = (uint64_t)(uintptr_t)calloc(1, size);
  return fails("cuMemAlloc");
}

int cuMemFree_v2(uint64_t address) {
  free((void *)(uintptr_t)address);
  return 0;
}

int cuDeviceCanAccessPeer(int *can, int from, int to) {
  *can = peers() && from != to;
  return 0;
}

int cuCtxEnablePeerAccess(void *context, unsigned flags) {
  (void)flags;
  int *one = &enabled[now][*(int *)context];
  if (!peers()) return 217;
  if (*one) return 704;
  *one = 1;
  return 0;
}

int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t size, void *stream) {
  (void)stream;
  if (!to_context || !from_context || to == from) return 1;
  memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
  return fails("cuMemcpyPeerAsync");
}

int cuStreamSynchronize(void *stream) {
  (void)stream;
  return 0;
}

int cuGetErrorName(int code, const char **name) {
  *name = code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
