// A libcuda.so.1 for tests: devices are memory of this process, and kernels run on the emulator when somebody
// synchronises. MOCK_GPUS says how many devices there are, MOCK_BLOCKS how many blocks one holds at once, MOCK_SEED seeds
// the scheduler. MOCK_PATIENCE_MS lets kernels that all wait do so in real time, for what the host may do meanwhile. With
// MOCK_IPC the memory of another process can be opened, but nothing that either writes ever arrives. Launches wait for
// those before them on their stream and for events, and for nothing else. Only what the runtime and its tests use is here;
// calls are counted by name.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device.cu"
#include "emulator.h"
#include "mock_streams.h"

#define MOCK extern "C" __attribute__((visibility("default"))) int

namespace {

using Kernel = void (*)(const Launch &);
struct MockFunction {
  const char *name;
  Kernel run;
};
#define COLLC_NAMED_KERNEL(name, type, protocol) {"collc_" #name, &collc_##name},
const MockFunction kFunctions[] = {COLLC_SIMPLE_KERNELS(COLLC_NAMED_KERNEL) COLLC_LL_KERNELS(COLLC_NAMED_KERNEL)
                                       COLLC_LL128_KERNELS(COLLC_NAMED_KERNEL)};

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotFoundHere = 500, kTooLarge = 720, kLaunchFailed = 719;
constexpr uint32_t kThreads = 64;  // a block that is larger does not fit

struct MockContext {
  int device;
};
struct Launching {
  const MockFunction *function;
  Launch arguments;
  uint32_t blocks, threads;
  size_t shared;
  int device;
};
struct Pending : Launching {
  mock::StreamKey stream;
  uint64_t number;
  mock::Ids after;
};
using MockGraph = mock::Graph<Launching>;
using MockEvent = mock::Event<Launching>;

std::recursive_mutex mutex;
MockContext contexts[64];
thread_local std::vector<MockContext *> stack;
std::vector<Pending *> pending;
std::map<std::string, int> calls;
std::atomic<int> busy[64];  // launches that have not ended, by device
std::string failure;
mock::Streams<Launching> streams;
uint64_t last_launch = 0;
uintptr_t last_stream = 0;
std::map<unsigned long long, size_t> sizes;  // of what was allocated

int setting(const char *name, int fallback) {
  const char *text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

MockContext *current() { return stack.empty() ? nullptr : stack.back(); }

mock::StreamKey key_of(void *stream) { return {stream == nullptr && current() != nullptr ? current()->device : 0, stream}; }

// Runs all launches that wait, side by side where nothing puts one before the other.
int run_pending() {
  if (pending.empty()) return failure.empty() ? 0 : kLaunchFailed;
  std::vector<emulation::LaunchRequest> launches;
  std::map<std::pair<int, mock::StreamKey>, uint32_t> numbers;
  std::map<uint64_t, std::pair<uint32_t, uint32_t>> places;  // launch -> stream and how many end with it there
  std::vector<uint32_t> lengths;
  uint32_t blocks = 0;
  for (const Pending *one : pending) {
    const auto [found, is_new] = numbers.emplace(std::make_pair(one->device, one->stream), numbers.size());
    if (is_new) lengths.push_back(0);
    emulation::LaunchRequest request{found->second, one->threads, one->shared, {}, {}, {}};
    places[one->number] = {found->second, ++lengths[found->second]};
    for (uint32_t b = 0; b < one->blocks; ++b) {
      request.ids.push_back(blocks++);
      request.devices.push_back(static_cast<uint32_t>(one->device));
    }
    request.body = [one] { one->function->run(one->arguments); };
    // What is not waiting here has ended.
    for (const uint64_t earlier : one->after)
      if (places.count(earlier) != 0 && places[earlier].first != found->second) request.after.push_back(places[earlier]);
    launches.push_back(std::move(request));
  }
  emulation::Options options;
  options.seed = static_cast<uint64_t>(setting("MOCK_SEED", 1));
  options.patience_ms = static_cast<uint32_t>(setting("MOCK_PATIENCE_MS", 0));
  auto &emulator = emulation::emulator();
  emulator.settle_memory();
  failure = emulator.run(options, blocks, static_cast<uint32_t>(numbers.size()), std::move(launches));
  emulator.settle_memory();
  for (Pending *one : pending) {
    --busy[one->device];
    delete one;
  }
  pending.clear();
  if (!failure.empty()) std::fprintf(stderr, "mock: %s\n", failure.c_str());
  return failure.empty() ? 0 : kLaunchFailed;
}

uint64_t add_pending(const Launching &what, const mock::StreamKey &stream, const mock::Ids &after) {
  auto *one = new Pending{what, stream, ++last_launch, after};
  pending.push_back(one);
  ++busy[one->device];
  return one->number;
}

int copy_now(unsigned long long to, unsigned long long from, size_t bytes) {
  const int result = run_pending();
  std::memmove(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
  return result;
}

int queue(void *function, unsigned blocks, unsigned threads, unsigned shared, void *stream, void **parameters) {
  if (current() == nullptr || threads > kThreads) return kInvalidValue;
  Launching one{static_cast<MockFunction *>(function), {}, blocks, threads, shared, current()->device};
  std::memcpy(&one.arguments, parameters[0], sizeof(Launch));
  const std::string name = one.function->name;
  ++calls[name.rfind("collc_ll128_", 0) == 0 ? "LL128" : name.rfind("collc_ll_", 0) == 0 ? "LL" : "Simple"];
  calls["blocks"] = std::max(calls["blocks"], static_cast<int>(blocks));
  const mock::StreamKey key = key_of(stream);
  if (MockGraph *graph = streams.capturing(key)) {
    graph->add({one, key, {}});
    return graph->broken;
  }
  const mock::Ids before = streams.waits(key);
  streams.add_launch(key, add_pending(one, key, before));
  return 0;
}

}  // namespace

#define MOCK_ENTER(name)                                   \
  const std::lock_guard<std::recursive_mutex> lock(mutex); \
  ++calls[name]

// For the tests.
MOCK mock_calls(const char *name) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return calls[name];
}

MOCK cuInit(unsigned) {
  for (int d = 0; d < 64; ++d) contexts[d].device = d;
  return 0;
}
MOCK cuDriverGetVersion(int *version) { return *version = 13000, 0; }
MOCK cuGetErrorString(int error, const char **text) {
  *text = error == kTooLarge ? "too many blocks in cooperative launch" : error == kOutOfMemory ? "out of memory" : "mock error";
  return 0;
}
MOCK cuDeviceGetName(char *name, int size, int) { return std::snprintf(name, static_cast<size_t>(size), "mock"), 0; }
MOCK cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = static_cast<size_t>(setting("MOCK_MEGABYTES", 1000)) << 20, 0; }
MOCK cuDeviceGetCount(int *count) { return *count = setting("MOCK_GPUS", 1), 0; }
MOCK cuDeviceGet(int *device, int number) {
  *device = number;
  return number >= 0 && number < setting("MOCK_GPUS", 1) ? 0 : 101;
}
MOCK cuDeviceGetUuid_v2(char *uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<char>(device + 1);
  return 0;
}
MOCK cuDeviceGetAttribute(int *value, int attribute, int) {
  const int capability = setting("MOCK_CAPABILITY", 90);
  *value = attribute == 16   ? setting("MOCK_BLOCKS", 132)
           : attribute == 75 ? capability / 10
           : attribute == 76 ? capability % 10
                             : 1;
  return 0;
}
// NVLink joins all but the pair that MOCK_PCIE names: 1 for devices 0 and 1, 3 for 1 and 2.
MOCK cuDeviceGetP2PAttribute(int *value, int, int a, int b) { return *value = a + b != setting("MOCK_PCIE", -1), 0; }
MOCK cuDeviceCanAccessPeer(int *can, int, int) { return *can = setting("MOCK_PEERS", 1), 0; }
MOCK cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &contexts[device], 0; }
MOCK cuCtxGetCurrent(void **context) { return *context = current(), 0; }
MOCK cuCtxSetCurrent(void *context) {
  stack.assign(1, static_cast<MockContext *>(context));
  return 0;
}
MOCK cuCtxPushCurrent_v2(void *context) { return stack.push_back(static_cast<MockContext *>(context)), 0; }
MOCK cuCtxPopCurrent_v2(void **context) {
  *context = current();
  stack.pop_back();
  return 0;
}
MOCK cuCtxGetDevice(int *device) { return current() == nullptr ? 201 : (*device = current()->device, 0); }
MOCK cuCtxEnablePeerAccess(void *, unsigned) {
  MOCK_ENTER("enable_peer");
  return 0;
}
MOCK cuCtxSynchronize() {
  std::unique_lock<std::recursive_mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    // Kernels run; those of other GPUs are nobody's business here.
    if (current() != nullptr && busy[current()->device] == 0) return 0;
    lock.lock();
  }
  ++calls["synchronize"];
  if (const int refused = streams.forbidden()) return refused;
  return run_pending();
}
MOCK cuStreamSynchronize(void *) {
  MOCK_ENTER("synchronize");
  if (const int refused = streams.forbidden()) return refused;
  return run_pending();
}
MOCK cuModuleLoadData(void **module, const void *) { return *module = &pending, setting("MOCK_MODULE", 0); }
MOCK cuModuleGetFunction(void **function, void *, const char *name) {
  for (const MockFunction &known : kFunctions)
    if (std::strcmp(known.name, name) == 0) return *function = const_cast<MockFunction *>(&known), 0;
  return kNotFoundHere;
}
MOCK cuFuncSetAttribute(void *, int, int) { return 0; }
MOCK cuFuncLoad(void *) { return 0; }
MOCK cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int threads, size_t) {
  return *blocks = threads <= static_cast<int>(kThreads), 0;
}
MOCK cuLaunchKernel(void *function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned shared,
                    void *stream, void **parameters, void **) {
  MOCK_ENTER("launch");
  return queue(function, gx, bx, shared, stream, parameters);
}
MOCK cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned,
                               unsigned shared, void *stream, void **parameters) {
  MOCK_ENTER("launch_cooperative");
  if (static_cast<int>(gx) > setting("MOCK_BLOCKS", 132)) return kTooLarge;
  return queue(function, gx, bx, shared, stream, parameters);
}
MOCK cuMemAlloc_v2(unsigned long long *at, size_t bytes) {
  MOCK_ENTER("allocate");
  if (const int refused = streams.forbidden()) return refused;
  if (bytes > static_cast<size_t>(setting("MOCK_MEGABYTES", 1000)) << 20) return kOutOfMemory;
  *at = reinterpret_cast<unsigned long long>(emulation::emulator().allocate(bytes, 256, true));
  sizes[*at] = bytes;
  return 0;
}
MOCK cuMemFree_v2(unsigned long long at) {
  MOCK_ENTER("release");
  if (const int refused = streams.forbidden()) return refused;
  emulation::emulator().release(reinterpret_cast<const char *>(at), sizes[at]);
  return 0;
}
MOCK cuMemHostAlloc(void **at, size_t bytes, unsigned) { return *at = std::calloc(1, bytes), 0; }
MOCK cuMemFreeHost(void *at) { return std::free(at), 0; }
MOCK cuMemHostGetDevicePointer_v2(unsigned long long *at, void *host, unsigned) {
  return *at = reinterpret_cast<unsigned long long>(host), 0;
}
MOCK cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void *>(to), from, bytes), 0;
}
MOCK cuMemsetD8_v2(unsigned long long to, unsigned char value, size_t bytes) {
  return std::memset(reinterpret_cast<void *>(to), value, bytes), 0;
}
MOCK cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
  MOCK_ENTER("copy");
  const mock::StreamKey key = key_of(stream);
  if (MockGraph *graph = streams.capturing(key)) {
    graph->add({{}, key, {}, true, to, from, bytes});
    return graph->broken;
  }
  return copy_now(to, from, bytes);
}
MOCK cuIpcGetMemHandle(void *handle, unsigned long long at) {
  MOCK_ENTER("ipc_get");
  std::memcpy(handle, &sizes[at], sizeof(size_t));
  return 0;
}
struct MockHandle {
  size_t bytes;
  char rest[56];
};
MOCK cuIpcOpenMemHandle_v2(unsigned long long *at, MockHandle handle, unsigned) {
  MOCK_ENTER("ipc_open");
  if (setting("MOCK_IPC", 0) == 0) return 801;
  char *made = emulation::emulator().allocate(handle.bytes, 256, true);
  std::memset(made, 0, handle.bytes);
  *at = reinterpret_cast<unsigned long long>(made);
  return 0;
}
MOCK cuIpcCloseMemHandle(unsigned long long) { return 0; }
MOCK cuEventCreate(MockEvent **event, unsigned) {
  MOCK_ENTER("event_create");
  return *event = new MockEvent, 0;
}
MOCK cuEventDestroy_v2(MockEvent *event) {
  MOCK_ENTER("event_destroy");
  return delete event, 0;
}
MOCK cuEventRecord(MockEvent *event, void *stream) {
  MOCK_ENTER("record");
  return streams.record(*event, key_of(stream));
}
MOCK cuStreamWaitEvent(void *stream, MockEvent *event, unsigned) {
  MOCK_ENTER("wait");
  return streams.wait(key_of(stream), *event);
}
MOCK cuStreamCreate(void **stream, unsigned) {
  MOCK_ENTER("stream_create");
  return *stream = reinterpret_cast<void *>(++last_stream), 0;
}
MOCK cuStreamIsCapturing(void *stream, int *status) {
  MOCK_ENTER("is_capturing");
  return *status = streams.capturing(key_of(stream)) != nullptr, 0;
}
MOCK cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *number, void **, const void **, size_t *) {
  MOCK_ENTER("is_capturing");
  const MockGraph *graph = streams.capturing(key_of(stream));
  *status = graph != nullptr;
  if (graph != nullptr) *number = graph->number;
  return 0;
}
MOCK cuStreamBeginCapture_v2(void *stream, int) {
  MOCK_ENTER("begin_capture");
  return streams.begin(key_of(stream));
}
MOCK cuStreamEndCapture(void *stream, MockGraph **graph) {
  MOCK_ENTER("end_capture");
  return streams.end(key_of(stream), graph);
}
MOCK cuGraphInstantiateWithFlags(MockGraph **ready, const MockGraph *graph, unsigned long long) {
  MOCK_ENTER("instantiate");
  return *ready = new MockGraph(*graph), 0;
}
MOCK cuGraphDestroy(MockGraph *graph) { return delete graph, 0; }
MOCK cuGraphExecDestroy(MockGraph *graph) { return delete graph, 0; }
MOCK cuGraphLaunch(const MockGraph *graph, void *stream) {
  MOCK_ENTER("graph_launch");
  const mock::StreamKey key = key_of(stream);
  const mock::Ids before = streams.waits(key);
  mock::Ids all = before;
  std::vector<uint64_t> numbers;
  for (const auto &node : graph->nodes) {
    if (node.is_copy) {
      if (const int result = copy_now(node.to, node.from, node.bytes)) return result;
      numbers.push_back(0);
      continue;
    }
    mock::Ids after = before;
    for (const size_t earlier : node.after) after.insert(numbers[earlier]);
    // On a stream that nothing else knows: its order within the graph is all that counts.
    const mock::StreamKey own{0, reinterpret_cast<void *>(++last_stream)};
    numbers.push_back(add_pending(node.launching, own, after));
    all.insert(numbers.back());
  }
  streams.set_waits(key, all);
  return 0;
}
MOCK cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void *>(from), bytes), 0;
}
