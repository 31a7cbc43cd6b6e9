// The interface of NCCL's network plugins (libnccl-net.so) as far as the engine `plugin` calls it, declared here: a plugin is found
// when a program runs, and nothing needs NCCL's headers. Layouts and values are those of the versions 8 to 12 in NCCL 2.30
// (src/include/plugin/net/net_v8.h to net_v12.h); tests/runtime/net_plugin_versions.h declares them once more, for the other side.
#pragma once
#include <cstddef>
#include <cstdint>

namespace collc::nccl_net {

constexpr int kOldest = 8, kNewest = 12;
constexpr size_t kHandleBytes = 128;  // NCCL_NET_HANDLE_MAXSIZE
constexpr int kHostMemory = 1, kGpuMemory = 2;  // NCCL_PTR_HOST, NCCL_PTR_CUDA
constexpr int kRequests = 32;  // NCCL_NET_MAX_REQUESTS, of a comm
constexpr int kAnyTrafficClass = -1;  // NCCL_NET_TRAFFIC_CLASS_UNDEF
constexpr int kOfHost = 0;  // NCCL_NET_DEVICE_HOST
constexpr int kWarn = 2, kInfo = 3;  // NCCL_LOG_WARN, NCCL_LOG_INFO

using Result = int;  // ncclResult_t
using Logger = void (*)(int level, unsigned long flags, const char *file, int line, const char *pattern, ...);
using Profiler = Result (*)(void **event, int type, void *handle, int64_t plugin, void *data);

struct Config {
  int traffic_class;
};

struct Properties8 {
  char *name;
  char *pci_path;
  uint64_t guid;
  int pointers;  // kinds of memory that it takes
  int registers_globally;
  int mbits;
  int port;
  float latency;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
};

template <int kDevices>
struct VirtualDevice {
  int count;
  int devices[kDevices];
};

// Of version 9, and 10.
struct Properties9 {
  char *name;
  char *pci_path;
  uint64_t guid;
  int pointers;
  int registers_globally;
  int forces_flush;
  int mbits;
  int port;
  float latency;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> parts;
  size_t most_bytes;  // of a message
  size_t most_collective_bytes;
};

struct Properties11 : Properties9 {
  int most_requests;
};

struct Properties12 {
  char *name;
  char *pci_path;
  uint64_t guid;
  int pointers;
  int registers_globally;
  int forces_flush;
  int mbits;
  int port;
  float latency;
  int most_comms;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> parts;
  size_t most_bytes;
  size_t most_collective_bytes;
  int most_requests;
  int16_t rail;
  int16_t plane;
};

// Functions whose arguments differ from version to version; each is of its number, and of later ones without their own.
using Init8 = Result (*)(Logger);
using Init10 = Result (*)(Logger, Profiler);
using Init11 = Result (*)(void **context, uint64_t communicator, Config *, Logger, Profiler);
using Listen8 = Result (*)(int device, void *handle, void **comm);
using Listen11 = Result (*)(void *context, int device, void *handle, void **comm);
using Connect8 = Result (*)(int device, void *handle, void **comm, void **on_device);
using Connect10 = Result (*)(int device, Config *, void *handle, void **comm, void **on_device);
using Connect11 = Result (*)(void *context, int device, void *handle, void **comm, void **on_device);
using Send8 = Result (*)(void *comm, void *data, int bytes, int tag, void *memory, void **request);
using Send9 = Result (*)(void *comm, void *data, size_t bytes, int tag, void *memory, void **request);
using Send10 = Result (*)(void *comm, void *data, size_t bytes, int tag, void *memory, void *event, void **request);
using Receive8 = Result (*)(void *comm, int count, void **data, int *bytes, int *tags, void **memory, void **request);
using Receive9 = Result (*)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **request);
using Receive10 = Result (*)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory, void **events,
                             void **request);

using Any = void (*)();

// The table ncclNetPlugin_v<N>; it grows at its end.
struct Table {
  const char *name;
  Any init;
  Result (*devices)(int *count);
  Result (*properties)(int device, void *properties);
  Any listen;
  Any connect;
  Result (*accept)(void *listening, void **comm, void **on_device);
  Result (*enroll)(void *comm, void *data, size_t bytes, int kind, void **memory);
  Result (*enroll_dmabuf)(void *comm, void *data, size_t bytes, int kind, uint64_t offset, int fd, void **memory);
  Result (*release)(void *comm, void *memory);
  Any send;
  Any receive;
  Result (*flush)(void *comm, int count, void **data, int *bytes, void **memory, void **request);
  Result (*test)(void *request, int *done, int *bytes);
  Result (*close_send)(void *comm);
  Result (*close_receive)(void *comm);
  Result (*close_listen)(void *comm);
  Any device_memory;
  Any consumed;
  // From here on since version 9.
  Any make_virtual_device;
  // Since version 11.
  Result (*finalize)(void *context);
  Any set_attributes;
};

}  // namespace collc::nccl_net
