// The part of the CUDA driver API that the runtime uses, opened when it is first needed. So a library loads on a machine
// without CUDA, and names what is missing. The declarations are written here; names, values and versions are as in cuda.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace collc::cuda {

using Result = int;  // 0: success
using DeviceNumber = int;
using Address = unsigned long long;
inline Address address(const void *pointer) { return reinterpret_cast<Address>(pointer); }
using Context = void *;
using Module = void *;
using Function = void *;
using Stream = void *;
using Event = void *;
using Graph = void *;
using UserObject = void *;
struct Uuid {
  unsigned char bytes[16];
};
struct IpcHandle {
  unsigned char bytes[64];
};
using MemoryHandle = unsigned long long;
struct MemoryLocation {
  int type, number;
};
struct AllocationProperties {
  int type, handle_types;
  MemoryLocation location;
  void *for_windows;
  unsigned char flags[8];
};
static_assert(sizeof(AllocationProperties) == 32, "as CUmemAllocationProp");
struct MulticastProperties {
  unsigned ndevices;
  size_t bytes;
  unsigned long long handle_types;
  unsigned long long flags;
};
static_assert(sizeof(MulticastProperties) == 32, "as CUmulticastObjectProp");
struct MemoryAccess {
  MemoryLocation location;
  int flags;
};
static_assert(sizeof(MemoryAccess) == 12, "as CUmemAccessDesc");

// One that CUlaunchAttribute has.
struct LaunchAttribute {
  int number;
  union {
    Event event;
    int cooperative;
    unsigned char bytes[64];
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "as CUlaunchAttribute");
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute *attributes;
  unsigned nattributes;
};
static_assert(sizeof(LaunchConfig) == 56, "as CUlaunchConfig");
// An operation of a stream: waits for a value in memory, or writes a value.
struct MemoryOperation {
  uint32_t operation;
  Address at;
  uint64_t value;
  uint32_t flags;
  Address alias;
  uint64_t unused;
};
static_assert(sizeof(MemoryOperation) == 48, "as CUstreamBatchMemOpParams");

constexpr Result kNotReady = 600, kOutOfMemory = 2;
constexpr Result kNotFound = 500, kPeerAccessAlreadyEnabled = 704, kNotSupported = 801;
constexpr Result kInvalidImage = 200, kNoBinaryForGpu = 209, kInvalidPtx = 218, kUnsupportedPtx = 222;
constexpr int kMultiprocessors = 16, kCooperativeLaunch = 95;  // device attributes
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;
constexpr int kVirtualMemory = 102, kDescriptorsOfMemory = 103, kMulticast = 132;
// Attributes of a pointer: the context of its memory, a number that no other allocation ever has, whether it is memory of
// cuMemAlloc (which IPC handles share), begin and size.
constexpr int kContextOf = 1, kBufferNumber = 7, kIsPlainAllocation = 10, kRangeBegin = 11, kRangeBytes = 12;
constexpr int kMemoryOperations64 = 122;  // its streams wait for words of 64 bits
constexpr int kPinnedAllocation = 1, kFileDescriptor = 1, kOnDevice = 1, kReadAndWrite = 3;  // of virtual memory
constexpr int kPeerAtomics = 2;  // attribute of a pair of devices: NVLink has them
constexpr int kCooperative = 2, kLaunchCompletionEvent = 12;  // attributes of a launch
constexpr int kMaxDynamicShared = 8;  // function attribute
constexpr unsigned kHostPortableMapped = 3;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kStreamNonBlocking = 1;  // neither waits for the legacy stream nor holds it up
constexpr unsigned kExternal = 1;  // in a capture: the graph waits for an event, or records it, whenever it runs
constexpr int kCaptureRelaxed = 2;  // of a thread: captures of others forbid it nothing
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr unsigned kNoDestructorSync = 1, kMoveReference = 1;  // of objects that graphs keep
constexpr uint32_t kWriteValue32 = 2, kWaitValue64 = 4;  // memory operations
constexpr uint32_t kWaitAnd = 2;  // until the memory has one of the value's bits

// X(member, symbol, arguments)
#define COLLC_DRIVER(X)                                                                                         \
  X(init, cuInit, (unsigned))                                                                                   \
  X(driver_version, cuDriverGetVersion, (int *))                                                                \
  X(error_text, cuGetErrorString, (Result, const char **))                                                      \
  X(device_get, cuDeviceGet, (DeviceNumber *, int))                                                             \
  X(device_count, cuDeviceGetCount, (int *))                                                                    \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid *, DeviceNumber))                                                    \
  X(device_bus, cuDeviceGetPCIBusId, (char *, int, DeviceNumber))                                               \
  X(device_attribute, cuDeviceGetAttribute, (int *, int, DeviceNumber))                                         \
  X(peer_attribute, cuDeviceGetP2PAttribute, (int *, int, DeviceNumber, DeviceNumber))                          \
  X(can_access_peer, cuDeviceCanAccessPeer, (int *, DeviceNumber, DeviceNumber))                                \
  X(primary_retain, cuDevicePrimaryCtxRetain, (Context *, DeviceNumber))                                        \
  X(context_current, cuCtxGetCurrent, (Context *))                                                              \
  X(context_set, cuCtxSetCurrent, (Context))                                                                    \
  X(context_push, cuCtxPushCurrent_v2, (Context))                                                               \
  X(context_pop, cuCtxPopCurrent_v2, (Context *))                                                               \
  X(context_device, cuCtxGetDevice, (DeviceNumber *))                                                           \
  X(context_synchronize, cuCtxSynchronize, ())                                                                  \
  X(context_id, cuCtxGetId, (Context, unsigned long long *))                                                    \
  X(enable_peer, cuCtxEnablePeerAccess, (Context, unsigned))                                                    \
  X(module_load, cuModuleLoadData, (Module *, const void *))                                                    \
  X(module_function, cuModuleGetFunction, (Function *, Module, const char *))                                   \
  X(function_set, cuFuncSetAttribute, (Function, int, int))                                                     \
  X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, Function, int, size_t))                     \
  X(launch, cuLaunchKernel,                                                                                     \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **, void **)) \
  X(launch_cooperative, cuLaunchCooperativeKernel,                                                              \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **))          \
  X(allocate, cuMemAlloc_v2, (Address *, size_t))                                                               \
  X(release, cuMemFree_v2, (Address))                                                                           \
  X(allocate_host, cuMemHostAlloc, (void **, size_t, unsigned))                                                 \
  X(release_host, cuMemFreeHost, (void *))                                                                      \
  X(host_address, cuMemHostGetDevicePointer_v2, (Address *, void *, unsigned))                                  \
  X(register_host, cuMemHostRegister_v2, (void *, size_t, unsigned))                                            \
  X(unregister_host, cuMemHostUnregister, (void *))                                                             \
  X(upload_async, cuMemcpyHtoDAsync_v2, (Address, const void *, size_t, Stream))                                \
  X(download, cuMemcpyDtoH_v2, (void *, Address, size_t))                                                       \
  X(download_async, cuMemcpyDtoHAsync_v2, (void *, Address, size_t, Stream))                                    \
  X(fill_async, cuMemsetD8Async, (Address, unsigned char, size_t, Stream))                                      \
  X(copy_async, cuMemcpyAsync, (Address, Address, size_t, Stream))                                              \
  X(ipc_get, cuIpcGetMemHandle, (IpcHandle *, Address))                                                         \
  X(ipc_open, cuIpcOpenMemHandle_v2, (Address *, IpcHandle, unsigned))                                          \
  X(ipc_close, cuIpcCloseMemHandle, (Address))                                                                  \
  X(allocation_granularity, cuMemGetAllocationGranularity, (size_t *, const AllocationProperties *, int))       \
  X(create_memory, cuMemCreate, (MemoryHandle *, size_t, const AllocationProperties *, unsigned long long))     \
  X(release_handle, cuMemRelease, (MemoryHandle))                                                               \
  X(reserve_addresses, cuMemAddressReserve, (Address *, size_t, size_t, Address, unsigned long long))           \
  X(free_addresses, cuMemAddressFree, (Address, size_t))                                                        \
  X(map_memory, cuMemMap, (Address, size_t, size_t, MemoryHandle, unsigned long long))                          \
  X(unmap_memory, cuMemUnmap, (Address, size_t))                                                                \
  X(set_access, cuMemSetAccess, (Address, size_t, const MemoryAccess *, size_t))                                \
  X(export_handle, cuMemExportToShareableHandle, (void *, MemoryHandle, int, unsigned long long))               \
  X(import_handle, cuMemImportFromShareableHandle, (MemoryHandle *, void *, int))                               \
  X(pointer_attribute, cuPointerGetAttribute, (void *, int, Address))                                           \
  X(event_create, cuEventCreate, (Event *, unsigned))                                                           \
  X(event_destroy, cuEventDestroy_v2, (Event))                                                                  \
  X(event_record, cuEventRecord, (Event, Stream))                                                               \
  X(event_record_with, cuEventRecordWithFlags, (Event, Stream, unsigned))                                       \
  X(event_query, cuEventQuery, (Event))                                                                         \
  X(stream_create, cuStreamCreate, (Stream *, unsigned))                                                        \
  X(stream_destroy, cuStreamDestroy_v2, (Stream))                                                               \
  X(stream_synchronize, cuStreamSynchronize, (Stream))                                                          \
  X(stream_wait, cuStreamWaitEvent, (Stream, Event, unsigned))                                                  \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *))                                                   \
  X(user_object_create, cuUserObjectCreate, (UserObject *, void *, void (*)(void *), unsigned, unsigned))       \
  X(user_object_release, cuUserObjectRelease, (UserObject, unsigned))                                           \
  X(graph_retain, cuGraphRetainUserObject, (Graph, UserObject, unsigned, unsigned))                             \
  X(stream_capture_info, cuStreamGetCaptureInfo_v2, (Stream, int *, uint64_t *, Graph *, const void **, size_t *))

// Functions that the oldest drivers lack: null there.
#define COLLC_NEW_DRIVER(X)                                                                                       \
  X(function_load, cuFuncLoad, (Function))                                                                        \
  X(multicast_create, cuMulticastCreate, (MemoryHandle *, const MulticastProperties *))                           \
  X(multicast_add, cuMulticastAddDevice, (MemoryHandle, DeviceNumber))                                            \
  X(multicast_bind, cuMulticastBindMem, (MemoryHandle, size_t, MemoryHandle, size_t, size_t, unsigned long long)) \
  X(multicast_granularity, cuMulticastGetGranularity, (size_t *, const MulticastProperties *, int))               \
  X(launch_with, cuLaunchKernelEx, (const LaunchConfig *, Function, void **, void **))                            \
  X(memory_operations, cuStreamBatchMemOp_v2, (Stream, unsigned, MemoryOperation *, unsigned))                    \
  X(stream_id, cuStreamGetId, (Stream, uint64_t *))

struct Driver {
#define COLLC_DRIVER_MEMBER(member, symbol, arguments) Result(*member) arguments;
  COLLC_DRIVER(COLLC_DRIVER_MEMBER)
  COLLC_NEW_DRIVER(COLLC_DRIVER_MEMBER)
#undef COLLC_DRIVER_MEMBER
};

// The driver, loaded and initialized once; fails with one line that names what is missing. Valid for ever.
Status load_driver(const Driver **driver);
// The same once load_driver has succeeded.
const Driver &driver();

// ok, or ncclUnhandledCudaError with the driver's message.
Status check(Result result, const char *what);

// Makes a context current until the end of the scope. It mostly is already: then that is one call of the driver, not two.
class Current {
 public:
  explicit Current(Context context) {
    Context now = nullptr;
    is_pushed_ = driver().context_current(&now) != 0 || now != context;
    if (is_pushed_) driver().context_push(context);
  }
  ~Current() {
    Context popped;
    if (is_pushed_) driver().context_pop(&popped);
  }
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;

 private:
  bool is_pushed_ = false;
};

// Until the end of the scope, the work of this thread is not captured, and breaks no capture of other threads.
class Uncaptured {
 public:
  Uncaptured() { driver().capture_mode(&mode_); }
  ~Uncaptured() { driver().capture_mode(&mode_); }
  Uncaptured(const Uncaptured &) = delete;
  Uncaptured &operator=(const Uncaptured &) = delete;

 private:
  int mode_ = kCaptureRelaxed;  // between the two calls: the thread's own
};

}  // namespace collc::cuda
