/* The part of CUDA's runtime that nccl-tests calls, with host memory as device memory: for its unmodified binaries over
 * a collc library of the host target. Work is done when a call returns, so streams have nothing to hold. Kernels cannot
 * run: a launch fails, which is why nccl-tests' own data check has to be off (-c 0).
 *
 * Written against the documented binary interface of CUDA 12 and 13; needs none of CUDA's files.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_MEMORY = 2, NOT_SUPPORTED = 801 };
enum { DEVICES = 64, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

/* cudaDeviceProp begins alike in CUDA 12 and 13, and has at least SIZE bytes in both. */
enum { PROPERTIES_SIZE = 1008, PROPERTIES_MEMORY = 288 };

static __thread int device;

static size_t memory(void) { return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE); }

/* Devices */
int cudaGetDeviceCount(int *count) { return *count = DEVICES, SUCCESS; }
int cudaGetDevice(int *current) { return *current = device, SUCCESS; }
int cudaSetDevice(int chosen) { return device = chosen, SUCCESS; }
int cudaDeviceReset(void) { return SUCCESS; }
int cudaDeviceSynchronize(void) { return SUCCESS; }

int cudaDeviceGetAttribute(int *value, int attribute, int of) {
  (void)of;
  *value = attribute == CAPABILITY_MAJOR ? 9 : 0; /* 9.0 and newer have the 8-bit floats */
  return SUCCESS;
}

int cudaGetDeviceProperties(void *properties, int of) {
  const size_t size = memory();
  (void)of;
  memset(properties, 0, PROPERTIES_SIZE);
  strcpy(properties, "host memory");
  memcpy((char *)properties + PROPERTIES_MEMORY, &size, sizeof size);
  return SUCCESS;
}
int cudaGetDeviceProperties_v2(void *properties, int of) { return cudaGetDeviceProperties(properties, of); }

/* Memory */
int cudaMalloc(void **made, size_t size) { return posix_memalign(made, 4096, size ? size : 1) == 0 ? SUCCESS : NO_MEMORY; }
int cudaHostAlloc(void **made, size_t size, unsigned flags) { return (void)flags, cudaMalloc(made, size); }
int cudaFree(void *freed) { return free(freed), SUCCESS; }
int cudaFreeHost(void *freed) { return free(freed), SUCCESS; }
int cudaMemGetInfo(size_t *unused, size_t *total) { return *unused = *total = memory(), SUCCESS; }
int cudaMemset(void *to, int value, size_t size) { return memset(to, value, size), SUCCESS; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return (void)kind, memmove(to, from, size), SUCCESS; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return (void)stream, cudaMemcpy(to, from, size, kind);
}

/* Streams, and events that hold the time */
static int make(void **made, size_t size) { return (*made = calloc(1, size)) != NULL ? SUCCESS : NO_MEMORY; }

int cudaStreamCreate(void **made) { return make(made, 1); }
int cudaStreamCreateWithFlags(void **made, unsigned flags) { return (void)flags, make(made, 1); }
int cudaStreamDestroy(void *stream) { return free(stream), SUCCESS; }
int cudaStreamQuery(void *stream) { return (void)stream, SUCCESS; }
int cudaStreamSynchronize(void *stream) { return (void)stream, SUCCESS; }
int cudaEventCreate(void **made) { return make(made, sizeof(struct timespec)); }
int cudaEventCreateWithFlags(void **made, unsigned flags) { return (void)flags, cudaEventCreate(made); }
int cudaEventDestroy(void *event) { return free(event), SUCCESS; }
int cudaEventSynchronize(void *event) { return (void)event, SUCCESS; }
int cudaEventRecord(void *event, void *stream) { return (void)stream, clock_gettime(CLOCK_MONOTONIC, event), SUCCESS; }

int cudaEventElapsedTime(float *milliseconds, void *start, void *stop) {
  const struct timespec *from = start, *to = stop;
  *milliseconds = (float)((double)(to->tv_sec - from->tv_sec) * 1e3 + (double)(to->tv_nsec - from->tv_nsec) / 1e6);
  return SUCCESS;
}

/* Graphs and kernels: not on a host */
int cudaStreamBeginCapture(void *stream, int mode) { return (void)stream, (void)mode, NOT_SUPPORTED; }
int cudaStreamEndCapture(void *stream, void **graph) { return (void)stream, (void)graph, NOT_SUPPORTED; }
int cudaGraphInstantiate(void **made, void *graph, unsigned long long flags) {
  return (void)made, (void)graph, (void)flags, NOT_SUPPORTED;
}
int cudaGraphLaunch(void *graph, void *stream) { return (void)graph, (void)stream, NOT_SUPPORTED; }
int cudaGraphExecDestroy(void *graph) { return (void)graph, SUCCESS; }
int cudaGraphDestroy(void *graph) { return (void)graph, SUCCESS; }

struct extent {
  unsigned x, y, z;
};
int cudaLaunchKernel(const void *kernel, struct extent grid, struct extent block, void **values, size_t shared, void *stream) {
  return (void)kernel, (void)grid, (void)block, (void)values, (void)shared, (void)stream, NOT_SUPPORTED;
}
int __cudaLaunchKernel(const void *kernel, struct extent grid, struct extent block, void **values, size_t shared,
                       void *stream) {
  return cudaLaunchKernel(kernel, grid, block, values, shared, stream);
}

int cudaGetLastError(void) { return SUCCESS; }
const char *cudaGetErrorString(int error) {
  return error == SUCCESS         ? "no error"
         : error == NOT_SUPPORTED ? "kernels and graphs cannot run on host memory: use -c 0, and no -G"
                                  : "out of memory";
}

/* What nvcc's code calls when a program starts */
void **__cudaRegisterFatBinary(void *code) {
  static void *handle;
  return (void)code, &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { return (void)handle, 1; }
void __cudaRegisterFunction(void **handle, const char *host, char *dev, const char *name, int limit, void *tid, void *bid,
                            void *block, void *grid, int *warp) {
  (void)handle, (void)host, (void)dev, (void)name, (void)limit;
  (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
}
void __cudaRegisterVar(void **handle, char *host, char *dev, const char *name, int external, size_t size, int constant,
                       int global) {
  (void)handle, (void)host, (void)dev, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
int __cudaGetKernel(void **kernel, const void *host) { return *kernel = (void *)host, SUCCESS; }
unsigned __cudaPushCallConfiguration(struct extent grid, struct extent block, size_t shared, void *stream) {
  return (void)grid, (void)block, (void)shared, (void)stream, 0;
}
int __cudaPopCallConfiguration(struct extent *grid, struct extent *block, size_t *shared, void *stream) {
  return (void)grid, (void)block, (void)shared, (void)stream, NOT_SUPPORTED;
}
