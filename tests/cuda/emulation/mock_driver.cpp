// A libcuda.so.1 for tests: devices are memory that processes can share, and kernels run on the emulator from the moment
// when they are launched (mock_runner.h). What the real driver waits for, this one waits for:
//   cuMemFree                               every kernel of this process that could reach the memory
//   cuMemFreeHost, cuMemHostUnregister      every kernel of this process
//   cuModuleLoadData, cuIpcCloseMemHandle   the kernels of the current device
//   the first launch of a kernel            the same, unless cuFuncLoad has loaded it
//   cuMemcpy, cuMemsetD8 and their like     the legacy stream: the blocking streams of the current device
//   cuMemAlloc, cuIpcOpenMemHandle          nothing, unless MOCK_ALLOC_WAITS is set: then as cuMemFree
//   cuMemCreate, cuMemMap, cuMemUnmap       nothing: a kernel that uses what is unmapped fails
// cuMemFree of memory that another process has open by an IPC handle ends the process with a line that says so.
// MOCK_GPUS says how many devices the machine has, MOCK_BLOCKS how many blocks one holds at once, MOCK_QUEUES how many
// hardware queues its streams share (8), MOCK_SEED seeds the scheduler. MOCK_NO_PEER, MOCK_NO_IPC and MOCK_BAD_LINK name
// pairs of devices (mock_devices.h); what crosses a bad link arrives wrong. MOCK_GARBLED names those that read nonsense in
// each other's memory, MOCK_MIG those that are parts of one card. File descriptors of memory are refused by MOCK_VMM=0 and
// for the pairs of MOCK_NO_VMM; MOCK_GPUDIRECT=0: no network card may touch memory of a GPU. With MOCK_OLD_ADDRESSES=1
// addresses that were freed come again soon. For tests of the mock, MOCK_WITHOUT and MOCK_FAULT switch rules off and plant faults
// (mock_faults.h). Kernels of which nothing has been heard for MOCK_PATIENCE_MS fail. Only what the runtime and its tests
// use is here; calls are counted by name.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#if defined(COLLC_TYPES)
constexpr bool kFewTypes = true;
#else
constexpr bool kFewTypes = false;
#endif
#define COLLC_DIRECT
#define COLLC_IN_SWITCH
#include "device.cu"
#if defined(COLLC_WRITTEN)
#include COLLC_WRITTEN
#endif
#include "emulator.h"
#include "mock_devices.h"
#include "mock_faults.h"
#include "mock_multicast.h"
#include "mock_runner.h"
#include "mock_streams.h"
#include "mock_virtual.h"

#define MOCK extern "C" __attribute__((visibility("default"))) int

using mock::fault;
using mock::Ids;
using mock::rule;
using mock::setting;
using mock::StreamKey;
using mock::Work;

namespace {

int pool_file() {
  static const int fd = mock::shared_file();
  return fd;
}

}  // namespace

emulation::Emulator &emulation::emulator() {
  static auto *const only = new Emulator(mock::kPoolBytes, pool_file());  // outlives every thread
  return *only;
}

namespace {

using Kernel = void (*)(const void *);
struct MockFunction {
  const char *name;
  size_t bytes;  // of its argument
  Kernel run;
};
#define COLLC_NAMED_KERNEL(name, type, protocol) \
  {"collc_" #name, sizeof(Launch), [](const void *launch) { collc_##name(*static_cast<const Launch *>(launch)); }},
const MockFunction kFunctions[] = {
    COLLC_SIMPLE_KERNELS(COLLC_NAMED_KERNEL) COLLC_LL_KERNELS(COLLC_NAMED_KERNEL) COLLC_LL128_KERNELS(COLLC_NAMED_KERNEL)
        COLLC_SWITCH_KERNELS(COLLC_NAMED_KERNEL) COLLC_DIRECT_KERNELS(COLLC_NAMED_KERNEL)
#if defined(COLLC_WRITTEN)
#define COLLC_NAMED_WRITTEN(name) COLLC_NAMED_KERNEL(written_##name, , )
            COLLC_WRITTEN_KERNELS(COLLC_NAMED_WRITTEN)
#endif
                {"collc_exchange", sizeof(Exchange),
                 [](const void *launch) { collc_exchange(*static_cast<const Exchange *>(launch)); }}};
// In a build of few types a library finds the kernels of all, but for those that are written out, and none of the others runs.
const MockFunction kLeftOut = {"", sizeof(Launch), [](const void *) {
                                 std::fputs("this driver has no kernel of that type\n", stderr);
                                 std::abort();
                               }};

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101,
              kInvalidContext = 201;
constexpr int kNoSuchPeer = 217, kNotFoundHere = 500, kAlreadyEnabled = 704, kTooLarge = 720, kNotReady = 600,
              kNotSupported = 801;
constexpr int kCapturedEvent = 907, kDestroyedContext = 709, kInvalidHandle = 400;
constexpr uint32_t kThreads = 64;  // a block that is larger does not fit

// The primary context of a device. A reset ends it, and the next one has the same handle but another id.
struct MockContext {
  int device;  // of the machine
  unsigned long long id = 0;  // 0: it was never retained, or was reset
};
// A kernel in a module. It can be launched only in the context that loaded the module.
struct LoadedFunction {
  const MockFunction *kernel;
  unsigned long long context_id;
};
using MockGraph = mock::Graph<Work>;
using MockEvent = mock::Event<Work>;
struct MockStream {
  int device;
  uint64_t id;
};
// Handles of streams that are gone: new streams get them first.
std::vector<MockStream *> free_streams;
uint64_t last_stream = 1000;  // ids of those without a handle of their own are below

// The default stream of this thread: other threads have the same handle for theirs.
uint64_t own_stream() {
  static std::atomic<uint64_t> last{100};
  thread_local const uint64_t own = ++last;
  return own;
}

struct Piece {
  size_t bytes;
  int device;
  uint64_t number;  // no other piece of the process has it
};

struct State {
  mock::Runner runner{emulation::emulator()};
  std::map<std::string, int> calls;
  mock::Streams<Work> streams;
  std::map<StreamKey, uint32_t> numbers;  // of the emulator's streams
  std::map<int, uint32_t> streams_of;  // a device, so far
  std::map<StreamKey, uint32_t> queues;
  std::map<int, Ids> newest;  // launches of a device
  std::map<std::pair<const MockFunction *, unsigned long long>, LoadedFunction> functions;  // by context
  std::set<const void *> loaded;  // kernels
  std::map<unsigned long long, Piece> pieces;  // the allocations
  std::map<int, size_t> held, most;  // bytes by device, now and at most
  std::map<void *, size_t> host;  // pinned memory
  std::map<void *, int> host_devices;  // of it, by cuMemHostAlloc: the device whose context has it
  size_t registered = 0;  // of it, by cuMemHostRegister
  struct Import {
    uint32_t count;
    int device;
    int opener;  // the device whose context has it open
  };
  std::map<unsigned long long, Import> imported;
  mock::Imports imports;
  mock::Virtual virtual_memory;
  mock::Multicast multicast;
  std::vector<std::pair<Ids, mock::UserObjects>> dying;  // of graphs that were destroyed while they ran
  std::set<std::pair<int, int>> enabled;  // peer access
  bool initialized = false;
  std::vector<int> visible;
};

State &state() {
  static auto *const only = new State;  // outlives every thread
  return *only;
}

MockContext contexts[mock::kMostDevices];
thread_local std::vector<MockContext *> stack;
thread_local int capture_mode = 0;  // 2: captures of other threads forbid this one nothing

MockContext *current() { return stack.empty() ? nullptr : stack.back(); }
int current_device() { return current() == nullptr ? 0 : current()->device; }

StreamKey key_of(void *stream) {
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  if (handle <= 1) return {current_device(), nullptr};
  if (handle == 2) return {current_device(), reinterpret_cast<void *>(own_stream())};
  return {static_cast<MockStream *>(stream)->device, stream};
}

uint32_t number_of(const StreamKey &key) {
  State &all = state();
  const auto [found, is_new] = all.numbers.emplace(key, 0);
  if (is_new) {
    found->second = all.runner.add_stream();
    const uint32_t count = all.streams_of[key.first]++;
    all.queues[key] = static_cast<uint32_t>(key.first) * 1000 + count % static_cast<uint32_t>(setting("MOCK_QUEUES", 8));
  }
  return found->second;
}

// Puts work on a stream, or into the graph that it captures.
int put(const Work &work, const StreamKey &key) {
  State &all = state();
  if (MockGraph *graph = all.streams.capturing(key)) {
    graph->add({work, key, {}});
    return graph->broken;
  }
  Ids before = all.streams.waits(key);
  if (!rule("streams run at once")) before.insert(all.newest[key.first].begin(), all.newest[key.first].end());
  const uint32_t stream = number_of(key);
  all.newest[key.first] = {all.runner.add(work, stream, all.queues[key], before)};
  all.streams.set_waits(key, all.newest[key.first]);
  return all.runner.failed();
}

int wait_for_device(mock::Runner::Hold &hold) {
  const int device = current_device();
  return state().runner.wait_devices(hold, [device](int other) { return other == device; });
}

int launch(mock::Runner::Hold &hold, void *function, unsigned blocks, unsigned threads, unsigned shared, void *stream,
           void **parameters) {
  if (current() == nullptr) return kInvalidContext;
  if (threads > kThreads) return kInvalidValue;
  if (state().streams.capturing(key_of(stream)) == nullptr && state().loaded.insert(function).second && rule("loading waits"))
    if (const int failed = wait_for_device(hold)) return failed;
  const auto &loaded = *static_cast<const LoadedFunction *>(function);
  if (loaded.context_id != current()->id) return kInvalidHandle;
  const MockFunction *const kernel = loaded.kernel;
  if (fault("closes what others opened"))
    for (const auto &[at, import] : state().imported) emulation::emulator().close_region(reinterpret_cast<void *>(at));
  const auto arguments = std::make_shared<std::vector<char>>(kernel->bytes + 16);
  std::memcpy(arguments->data(), parameters[0], kernel->bytes);
  State &all = state();
  const std::string name = kernel->name;
  ++all.calls[name.rfind("collc_ll128_", 0) == 0    ? "LL128"
              : name.rfind("collc_ll_", 0) == 0     ? "LL"
              : name.rfind("collc_simple_", 0) == 0 ? "Simple"
                                                    : "transfers"];
  all.calls["written"] += name.rfind("collc_written_", 0) == 0 ? 1 : 0;
  all.calls["blocks"] = std::max(all.calls["blocks"], static_cast<int>(blocks));
  const Work work{[kernel, arguments] { kernel->run(arguments->data()); }, blocks, threads, shared, current()->device};
  return put(work, key_of(stream));
}

// Copies as a device does, with the emulator's eye on both sides; much of it at once.
void copy_on_device(char *to, const char *from, size_t bytes) {
  emulation::Emulator &emulator = emulation::emulator();
  if (bytes > 4096) {
    std::memmove(to, from, bytes);
    return;
  }
  const uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  const size_t piece = both % 16 == 0 ? 16 : 1;
  char value[16];
  for (size_t i = 0; i < bytes;) {
    const size_t now = bytes - i >= piece ? piece : 1;
    emulator.read(from + i, value, now);
    emulator.write(to + i, value, now);
    i += now;
  }
}

// The device whose memory this is, of this process or of another one; -1: none.
int owner_of(unsigned long long at) {
  const auto before = [at](const auto &all) {
    auto found = all.upper_bound(at);
    return found == all.begin() ? all.end() : --found;
  };
  if (const auto piece = before(state().pieces); piece != state().pieces.end() && at < piece->first + piece->second.bytes)
    return piece->second.device;
  if (const mock::Mapped *mapped = state().virtual_memory.mapping(at)) return mapped->device;
  const auto import = before(state().imported);
  return import == state().imported.end() ? -1 : import->second.device;
}

int wait_for_legacy(mock::Runner::Hold &hold) {
  State &all = state();
  return all.runner.wait(hold, all.streams.waits({current_device(), nullptr}));
}

// Waits for all work that could still access memory of a device.
int wait_for_users(mock::Runner::Hold &hold, int device) {
  State &all = state();
  return all.runner.wait_devices(hold, [&](int other) { return other == device || all.enabled.count({other, device}) != 0; });
}

int wait_for_everything(mock::Runner::Hold &hold) {
  return state().runner.wait_devices(hold, [](int) { return true; });
}

int machine_device(int visible) { return state().visible.at(static_cast<size_t>(visible)); }
int check_device(int visible) {
  if (!state().initialized) return kNotInitialized;
  return visible >= 0 && static_cast<size_t>(visible) < state().visible.size() ? 0 : kInvalidDevice;
}

bool may_reach(int a, int b) { return !mock::names_pair("MOCK_NO_PEER", a, b); }
// Returns true if data that one device writes into the other's memory arrive wrong.
bool spoils(int a, int b) {
  return mock::names_pair("MOCK_BAD_LINK", a, b) || (mock::names_pair("MOCK_GARBLED", a, b) && rule("garbled is garbled"));
}

}  // namespace

// A call that a test wants to fail: how many of this thread come before it, and its name once it has.
thread_local int calls_before = -1;
thread_local const char *failed_call = "";
bool fails(const char *name) {
  static const char *const always = std::getenv("MOCK_FAIL");
  if (always != nullptr && std::strcmp(always, name) == 0) return true;
  if (calls_before < 0 || --calls_before >= 0) return false;
  failed_call = name;
  return true;
}

#define MOCK_ENTER(name)                   \
  mock::Runner::Hold hold(state().runner); \
  ++state().calls[name];                   \
  if (fails(name)) return kNotSupported
#define MOCK_UNLESS_CAPTURING \
  if (const int refused = capture_mode == 2 ? 0 : state().streams.forbidden()) return refused

// For the tests.
MOCK mock_calls(const char *name) {
  const mock::Runner::Hold hold(state().runner);
  return state().calls[name];
}
// Makes the call of this thread fail that follows `calls` others; below 0: no call fails.
MOCK mock_fail_after(int calls) {
  calls_before = calls;
  failed_call = "";
  return 0;
}
// Skips this thread's wait of a stream for an event that follows `waits` others; below 0: skips none.
thread_local int waits_before = -1;
MOCK mock_drop_wait(int waits) { return waits_before = waits, 0; }
// Skips this thread's memory operation of a stream that follows `operations` others; below 0: skips none.
thread_local int operations_before = -1;
MOCK mock_drop_operation(int operations) { return operations_before = operations, 0; }
// The call that has failed; empty: none.
extern "C" __attribute__((visibility("default"))) const char *mock_failed() { return failed_call; }
// Pieces of memory that this process has.
MOCK mock_pieces() {
  const mock::Runner::Hold hold(state().runner);
  return static_cast<int>(state().pieces.size() + state().imported.size() + state().host.size() +
                          state().virtual_memory.pieces());
}
// Kilobytes of a device (of the machine) that this process has had at most.
MOCK mock_most_kilobytes(int device) {
  const mock::Runner::Hold hold(state().runner);
  return static_cast<int>(state().most[device] >> 10);
}

// Bytes of the largest allocation that this process has.
MOCK mock_largest() {
  const mock::Runner::Hold hold(state().runner);
  size_t largest = 0;
  for (const auto &[at, piece] : state().pieces) largest = std::max(largest, piece.bytes);
  return static_cast<int>(largest);
}

// Bytes of host memory that was there before it was pinned, and still is.
MOCK mock_pinned() {
  const mock::Runner::Hold hold(state().runner);
  return static_cast<int>(state().registered);
}

MOCK cuInit(unsigned) {
  const mock::Runner::Hold hold(state().runner);
  State &all = state();
  all.initialized = true;
  all.visible = mock::visible_devices();
  for (int d = 0; d < mock::kMostDevices; ++d) {
    contexts[d].device = d;
    emulation::emulator().set_reach(static_cast<uint32_t>(d), static_cast<uint32_t>(d), true);
  }
  return all.visible.empty() ? kNoDevice * (setting("MOCK_GPUS", 1) != 0) : 0;
}
MOCK cuDriverGetVersion(int *version) { return *version = 13000, 0; }
MOCK cuGetErrorString(int error, const char **text) {
  *text = error == kTooLarge ? "too many blocks in cooperative launch" : error == kOutOfMemory ? "out of memory" : "mock error";
  return 0;
}
MOCK cuDeviceGetName(char *name, int size, int) { return std::snprintf(name, static_cast<size_t>(size), "mock"), 0; }
MOCK cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = static_cast<size_t>(setting("MOCK_MEGABYTES", 1000)) << 20, 0; }
MOCK cuDeviceGetCount(int *count) {
  return *count = static_cast<int>(state().visible.size()), state().initialized ? 0 : kNotInitialized;
}
MOCK cuDeviceGet(int *device, int number) { return *device = number, check_device(number); }
MOCK cuDeviceGetUuid_v2(char *uuid, int device) {
  if (const int wrong = check_device(device)) return wrong;
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<char>(machine_device(device) + 1);
  return 0;
}
MOCK cuDeviceGetPCIBusId(char *text, int size, int device) {
  if (const int wrong = check_device(device)) return wrong;
  int card = machine_device(device);  // parts of a card (MIG) have its bus id
  for (int other = 0; other < machine_device(device) && card != other; ++other)
    if (mock::names_pair("MOCK_MIG", other, card)) card = other;
  return std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", 0x10 + card), 0;
}
MOCK cuDeviceGetAttribute(int *value, int attribute, int) {
  const int capability = setting("MOCK_CAPABILITY", 90);
  *value = attribute == 16    ? setting("MOCK_BLOCKS", 132)
           : attribute == 75  ? capability / 10
           : attribute == 76  ? capability % 10
           : attribute == 103 ? setting("MOCK_VMM", 1)
           : attribute == 122 ? setting("MOCK_MEMORY_OPERATIONS", 1)
           : attribute == 132 ? setting("MOCK_MULTICAST", 1)
                              : 1;
  return 0;
}
// NVLink joins all but the pair that MOCK_PCIE names: 1 for devices 0 and 1, 3 for 1 and 2.
MOCK cuDeviceGetP2PAttribute(int *value, int, int a, int b) {
  if (const int wrong = std::max(check_device(a), check_device(b))) return wrong;
  a = machine_device(a), b = machine_device(b);
  return *value = may_reach(a, b) && a + b != setting("MOCK_PCIE", -1), 0;
}
MOCK cuDeviceCanAccessPeer(int *can, int a, int b) {
  if (const int wrong = std::max(check_device(a), check_device(b))) return wrong;
  return *can = may_reach(machine_device(a), machine_device(b)), 0;
}
MOCK cuDevicePrimaryCtxRetain(void **context, int device) {
  if (const int wrong = check_device(device)) return wrong;
  MockContext &primary = contexts[machine_device(device)];
  static std::atomic<unsigned long long> last{0};
  if (primary.id == 0) primary.id = ++last;
  return *context = &primary, 0;
}
// Destroys the context with everything in it, as cudaDeviceReset does.
MOCK cuDevicePrimaryCtxReset_v2(int device) {
  if (const int wrong = check_device(device)) return wrong;
  mock::Runner::Hold hold(state().runner);
  State &all = state();
  const int machine = machine_device(device);
  const int result = all.runner.wait_devices(hold, [machine](int other) { return other == machine; });
  for (auto piece = all.pieces.begin(); piece != all.pieces.end();) {
    const auto [at, what] = *piece;
    if (what.device != machine) {
      ++piece;
      continue;
    }
    emulation::emulator().release(reinterpret_cast<const char *>(at), what.bytes);
    all.held[machine] -= what.bytes;
    piece = all.pieces.erase(piece);
  }
  for (auto import = all.imported.begin(); import != all.imported.end();) {
    const auto [at, what] = *import;
    if (what.opener != machine) {
      ++import;
      continue;
    }
    emulation::emulator().close_region(reinterpret_cast<void *>(at));
    all.imports.close(reinterpret_cast<char *>(at));
    import = all.imported.erase(import);
  }
  for (auto memory = all.host_devices.begin(); memory != all.host_devices.end();) {
    const auto [at, owner] = *memory;
    if (owner != machine) {
      ++memory;
      continue;
    }
    emulation::emulator().close_region(at);
    mprotect(at, all.host.at(at), PROT_NONE);  // whoever still uses it crashes
    all.host.erase(at);
    memory = all.host_devices.erase(memory);
  }
  contexts[machine].id = 0;
  return result;
}
MOCK cuCtxGetId(MockContext *context, unsigned long long *id) {
  if (context == nullptr) return kInvalidContext;
  return *id = context->id, context->id == 0 ? kDestroyedContext : 0;
}
static void count_context() {
  const mock::Runner::Hold hold(state().runner);
  ++state().calls["context"];
}
MOCK cuCtxGetCurrent(void **context) {
  count_context();
  return *context = current(), 0;
}
MOCK cuCtxSetCurrent(void *context) {
  stack.assign(1, static_cast<MockContext *>(context));
  return 0;
}
MOCK cuCtxPushCurrent_v2(void *context) {
  count_context();
  return stack.push_back(static_cast<MockContext *>(context)), 0;
}
MOCK cuCtxPopCurrent_v2(void **context) {
  count_context();
  *context = current();
  stack.pop_back();
  return 0;
}
MOCK cuCtxGetDevice(int *device) {
  if (current() == nullptr) return kInvalidContext;
  const std::vector<int> &seen = state().visible;
  *device = static_cast<int>(std::find(seen.begin(), seen.end(), current()->device) - seen.begin());
  return 0;
}
MOCK cuCtxEnablePeerAccess(void *context, unsigned) {
  MOCK_ENTER("enable_peer");
  if (current() == nullptr) return kInvalidContext;
  const int from = current()->device, to = static_cast<MockContext *>(context)->device;
  if (!may_reach(from, to)) return kNoSuchPeer;
  if (!state().enabled.insert({from, to}).second) return kAlreadyEnabled;
  if (fault("opens no peers")) return state().enabled.erase({from, to}), 0;
  emulation::emulator().set_reach(static_cast<uint32_t>(from), static_cast<uint32_t>(to), true);
  return 0;
}
MOCK cuCtxSynchronize() {
  MOCK_ENTER("synchronize");
  MOCK_UNLESS_CAPTURING;
  return wait_for_device(hold);
}
MOCK cuStreamSynchronize(void *stream) {
  mock::Runner::Hold hold(state().runner);
  ++state().calls["synchronize_stream"];
  MOCK_UNLESS_CAPTURING;
  const int waited = state().runner.wait(hold, state().streams.waits(key_of(stream)));
  return fails("synchronize_stream") ? kNotSupported : waited;  // what was to be waited for has ended in any case
}
MOCK cuStreamQuery(void *stream) {
  MOCK_ENTER("query");
  MOCK_UNLESS_CAPTURING;
  return state().runner.has_ended(state().streams.waits(key_of(stream))) ? state().runner.failed() : kNotReady;
}
MOCK cuModuleLoadData(void **module, const void *) {
  MOCK_ENTER("load");
  *module = &contexts;
  const int waited = rule("loading waits") ? wait_for_device(hold) : 0;
  return setting("MOCK_MODULE", 0) != 0 ? setting("MOCK_MODULE", 0) : waited;
}
void *loaded_here(const MockFunction &kernel) {
  const mock::Runner::Hold hold(state().runner);
  const unsigned long long id = current()->id;
  return &state().functions.try_emplace({&kernel, id}, LoadedFunction{&kernel, id}).first->second;
}
MOCK cuModuleGetFunction(void **function, void *, const char *name) {
  for (const MockFunction &known : kFunctions)
    if (std::strcmp(known.name, name) == 0) return *function = loaded_here(known), 0;
  if (!kFewTypes || std::strstr(name, "written") != nullptr) return kNotFoundHere;
  return *function = loaded_here(kLeftOut), 0;
}
MOCK cuFuncSetAttribute(void *, int, int) { return 0; }
MOCK cuFuncLoad(void *function) {
  const mock::Runner::Hold hold(state().runner);
  if (!fault("loads late")) state().loaded.insert(function);
  return 0;
}
MOCK cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int threads, size_t) {
  const mock::Runner::Hold hold(state().runner);
  ++state().calls["occupancy"];
  return *blocks = threads <= static_cast<int>(kThreads), 0;
}
MOCK cuLaunchKernel(void *function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned shared,
                    void *stream, void **parameters, void **) {
  MOCK_ENTER("launch");
  return launch(hold, function, gx, bx, shared, stream, parameters);
}
MOCK cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned,
                               unsigned shared, void *stream, void **parameters) {
  MOCK_ENTER("launch_cooperative");
  if (static_cast<int>(gx) > setting("MOCK_BLOCKS", 132)) return kTooLarge;
  return launch(hold, function, gx, bx, shared, stream, parameters);
}
struct LaunchAttribute {
  int number, pad;
  union {
    MockEvent *event;
    int cooperative;
    char bytes[64];
  } value;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  const LaunchAttribute *attributes;
  unsigned nattributes;
};
MOCK cuLaunchKernelEx(const LaunchConfig *config, void *function, void **parameters, void **) {
  MOCK_ENTER("launch_with");
  MockEvent *begun = nullptr;
  for (const LaunchAttribute *one = config->attributes; one != config->attributes + config->nattributes; ++one)
    if (one->number == 2 && one->value.cooperative != 0 && static_cast<int>(config->grid[0]) > setting("MOCK_BLOCKS", 132))
      return kTooLarge;
    else if (one->number == 12)
      begun = one->value.event;
    else if (one->number != 2)
      return kInvalidValue;
  const StreamKey key = key_of(config->stream);
  if (begun != nullptr && state().streams.capturing(key) != nullptr) return mock::kUnsupported;
  const int failed =
      launch(hold, function, config->grid[0], config->block[0], config->shared_bytes, config->stream, parameters);
  if (begun == nullptr || failed != 0) return failed;
  *begun = {};
  begun->recorded = true;
  for (const uint64_t one : state().streams.waits(key)) begun->launches.insert(one | mock::kBegun);
  return 0;
}
MOCK cuMemAlloc_v2(unsigned long long *at, size_t bytes) {
  MOCK_ENTER("allocate");
  MOCK_UNLESS_CAPTURING;
  if (current() == nullptr) return kInvalidContext;
  if (current()->id == 0) return kDestroyedContext;
  const int device = current()->device;
  State &all = state();
  for (const mock::Mapped &returned : all.virtual_memory.take_returned()) all.held[returned.device] -= returned.bytes;
  if (all.held[device] + bytes > static_cast<size_t>(setting("MOCK_MEGABYTES", 1000)) << 20) return kOutOfMemory;
  if (setting("MOCK_ALLOC_WAITS", 0) != 0)
    if (const int failed = wait_for_users(hold, device)) return failed;
  emulation::emulator().take_released(setting("MOCK_OLD_ADDRESSES", 0) != 0);
  *at = reinterpret_cast<unsigned long long>(
      emulation::emulator().allocate(bytes, bytes < 4096 ? 256 : 4096, true, static_cast<uint32_t>(device)));
  static uint64_t numbers = 0;
  all.pieces[*at] = {bytes, device, ++numbers};
  all.held[device] += bytes;
  all.most[device] = std::max(all.most[device], all.held[device]);
  return 0;
}
MOCK cuMemFree_v2(unsigned long long at) {
  MOCK_ENTER("release");
  MOCK_UNLESS_CAPTURING;
  const auto found = state().pieces.find(at);
  if (found == state().pieces.end()) return kInvalidValue;
  const Piece piece = found->second;
  if (const int process = mock::OpenMarks::find(pool_file(), piece.number);
      process != 0 && rule("importers close before memory is freed")) {
    std::fprintf(stderr, "mock driver: process %d frees memory that process %d has open by an IPC handle\n", getpid(), process);
    std::abort();
  }
  const int result = rule("freeing waits") ? wait_for_users(hold, piece.device) : 0;
  emulation::emulator().release(reinterpret_cast<const char *>(at), piece.bytes);
  state().held[piece.device] -= piece.bytes;
  state().pieces.erase(at);
  return result;
}
MOCK cuMemHostAlloc(void **at, size_t bytes, unsigned) {
  MOCK_ENTER("allocate_host");
  *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*at == MAP_FAILED) std::abort();
  emulation::emulator().open_region(*at, bytes, emulation::kAnyDevice);
  state().host_devices[*at] = current() == nullptr ? emulation::kAnyDevice : current()->device;
  return state().host[*at] = bytes, 0;
}
MOCK cuMemFreeHost(void *at) {
  MOCK_ENTER("release_host");
  const int result = rule("freeing host memory waits") ? wait_for_everything(hold) : 0;
  const auto found = state().host.find(at);
  if (state().host_devices.erase(at) == 0 || found == state().host.end()) return kInvalidValue;
  emulation::emulator().close_region(at);
  munmap(at, found->second);
  return state().host.erase(found), result;
}
MOCK cuMemHostRegister_v2(void *at, size_t bytes, unsigned) {
  MOCK_ENTER("register_host");
  if (setting("MOCK_NO_REGISTER", 0) != 0) return kNotSupported;
  emulation::emulator().open_region(at, bytes, emulation::kAnyDevice);
  state().registered += bytes;
  return state().host[at] = bytes, 0;
}
MOCK cuMemHostUnregister(void *at) {
  MOCK_ENTER("unregister_host");
  const int result = rule("unpinning waits") ? wait_for_everything(hold) : 0;
  emulation::emulator().close_region(at);
  const auto found = state().host.find(at);
  if (found == state().host.end()) return kInvalidValue;
  state().registered -= found->second;
  return state().host.erase(found), result;
}
MOCK cuMemHostGetDevicePointer_v2(unsigned long long *at, void *host, unsigned) {
  MOCK_ENTER("host_address");
  *at = reinterpret_cast<unsigned long long>(host);
  auto found = state().host.upper_bound(host);
  if (found == state().host.begin()) return kInvalidValue;
  --found;
  return static_cast<char *>(host) < static_cast<char *>(found->first) + found->second ? 0 : kInvalidValue;
}
MOCK cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
  MOCK_ENTER("upload");
  const int result = wait_for_legacy(hold);
  return std::memcpy(reinterpret_cast<void *>(to), from, bytes), result;
}
MOCK cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
  MOCK_ENTER("download");
  const int result = wait_for_legacy(hold);
  return std::memcpy(to, reinterpret_cast<void *>(from), bytes), result;
}
MOCK cuMemsetD8_v2(unsigned long long to, unsigned char value, size_t bytes) {
  MOCK_ENTER("fill");
  const int result = wait_for_legacy(hold);
  return std::memset(reinterpret_cast<void *>(to), value, bytes), result;
}
MOCK cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void *stream) {
  MOCK_ENTER("fill_async");
  if (fault("copies without a stream"))
    if (const int failed = wait_for_legacy(hold)) return failed;
  return put({[=] { std::memset(reinterpret_cast<void *>(to), value, bytes); }, 1, 1, 0, current_device()}, key_of(stream));
}
// From memory that the caller may change at once.
MOCK cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
  MOCK_ENTER("upload_async");
  if (fault("copies without a stream"))
    if (const int failed = wait_for_legacy(hold)) return failed;
  const auto *first = static_cast<const char *>(from);
  const auto data = std::make_shared<std::vector<char>>(first, first + bytes);
  return put({[=] { std::memcpy(reinterpret_cast<void *>(to), data->data(), bytes); }, 1, 1, 0, current_device()},
             key_of(stream));
}
MOCK cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
  MOCK_ENTER("download_async");
  return put({[=] { std::memcpy(to, reinterpret_cast<void *>(from), bytes); }, 1, 1, 0, current_device()}, key_of(stream));
}
MOCK cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
  MOCK_ENTER("copy");
  const int owner = owner_of(from);
  const bool is_other = owner >= 0 && owner != current_device();
  const bool garbled =
      is_other && mock::names_pair("MOCK_GARBLED", current_device(), owner) && !fault("trusts what it has opened");
  // Between GPUs of one process a copy needs no access: the driver takes the way over the host.
  const bool staged = is_other && state().enabled.count({current_device(), owner}) == 0 && state().pieces.count(from) != 0;
  const auto body = [=] {
    auto *const target = reinterpret_cast<char *>(to);
    const auto *const source = reinterpret_cast<const char *>(from);
    if (staged)
      std::memcpy(target, source, bytes);
    else
      copy_on_device(target, source, bytes);
    if (garbled) std::memset(target, 0xff, bytes);
  };
  return put({body, 1, 1, 0, current_device()}, key_of(stream));
}
// Memory of cuMemAlloc is suitable for IPC handles; of other memory nothing is known.
MOCK cuPointerGetAttribute(void *value, int attribute, unsigned long long at) {
  MOCK_ENTER("pointer_attribute");
  auto found = state().pieces.upper_bound(at);
  const bool is_piece = found != state().pieces.begin() && at < std::prev(found)->first + std::prev(found)->second.bytes;
  const int is_plain = is_piece ? 1 : 0;
  if (attribute == 10) return std::memcpy(value, &is_plain, sizeof is_plain), 0;
  if (!is_piece) return kInvalidValue;
  --found;
  const auto context = reinterpret_cast<uint64_t>(&contexts[found->second.device]);
  const std::map<int, uint64_t> known = {
      {1, context}, {7, found->second.number}, {11, found->first}, {12, found->second.bytes}};
  if (known.count(attribute) == 0) return kInvalidValue;
  return std::memcpy(value, &known.at(attribute), sizeof(uint64_t)), 0;
}
MOCK cuIpcGetMemHandle(mock::MockHandle *handle, unsigned long long at) {
  MOCK_ENTER("ipc_get");
  const auto found = state().pieces.find(at);
  if (found == state().pieces.end()) return kInvalidValue;
  if (setting("MOCK_IPC", 1) == 0) return kNotSupported;
  *handle = {};
  handle->process = getpid();
  handle->file = pool_file();
  handle->device = found->second.device;
  handle->offset = at - reinterpret_cast<unsigned long long>(emulation::emulator().pool());
  handle->bytes = found->second.bytes;
  handle->number = found->second.number;
  return 0;
}
MOCK cuIpcOpenMemHandle_v2(unsigned long long *at, mock::MockHandle handle, unsigned) {
  MOCK_ENTER("ipc_open");
  if (current() == nullptr || handle.process == getpid()) return kInvalidContext;
  const int device = current()->device;
  if (mock::names_pair("MOCK_NO_IPC", device, handle.device)) return kNotSupported;
  if (device != handle.device && !may_reach(device, handle.device)) return kNoSuchPeer;
  if (setting("MOCK_ALLOC_WAITS", 0) != 0)
    if (const int failed = wait_for_device(hold)) return failed;
  char *mapped = state().imports.open(handle);
  if (mapped == nullptr) return kInvalidValue;
  *at = reinterpret_cast<unsigned long long>(mapped);
  State::Import &import = state().imported.emplace(*at, State::Import{0, handle.device, device}).first->second;
  ++import.count;
  emulation::emulator().open_region(mapped, handle.bytes, static_cast<uint32_t>(device));
  if (spoils(device, handle.device)) emulation::emulator().spoil_region(mapped);
  return 0;
}
MOCK cuIpcCloseMemHandle(unsigned long long at) {
  MOCK_ENTER("ipc_close");
  const auto found = state().imported.find(at);
  if (found == state().imported.end()) return kInvalidValue;
  const int result = rule("closing waits") ? wait_for_device(hold) : 0;
  if (--found->second.count != 0 || fault("leaves handles open")) return result;
  state().imported.erase(found);
  emulation::emulator().close_region(reinterpret_cast<void *>(at));
  state().imports.close(reinterpret_cast<char *>(at));
  return result;
}
MOCK cuMemGetAllocationGranularity(size_t *bytes, const mock::Properties *, int) { return *bytes = mock::kGranularity, 0; }
MOCK cuMemCreate(unsigned long long *handle, size_t bytes, const mock::Properties *wanted, unsigned long long) {
  MOCK_ENTER("create");
  if (const int wrong = check_device(wanted->device)) return wrong;
  if (wanted->type != 1 || wanted->location != 1 || bytes == 0 || bytes % mock::kGranularity != 0) return kInvalidValue;
  if (wanted->handle_types != 0 && setting("MOCK_VMM", 1) == 0) return kNotSupported;
  const int device = machine_device(wanted->device);
  State &all = state();
  for (const mock::Mapped &returned : all.virtual_memory.take_returned()) all.held[returned.device] -= returned.bytes;
  if (all.held[device] + bytes > static_cast<size_t>(setting("MOCK_MEGABYTES", 1000)) << 20) return kOutOfMemory;
  all.held[device] += bytes;
  all.most[device] = std::max(all.most[device], all.held[device]);
  return *handle = all.virtual_memory.create(bytes, device, wanted->handle_types), 0;
}
MOCK cuMemRelease(unsigned long long handle) {
  MOCK_ENTER("release_handle");
  if (state().multicast.has(handle)) return state().multicast.release(handle), 0;
  return state().virtual_memory.release(handle) ? 0 : kInvalidValue;
}
MOCK cuMemAddressReserve(unsigned long long *at, size_t bytes, size_t, unsigned long long, unsigned long long) {
  MOCK_ENTER("reserve");
  if (bytes == 0 || bytes % mock::kGranularity != 0) return kInvalidValue;
  return *at = state().virtual_memory.reserve(bytes), *at == 0 ? kOutOfMemory : 0;
}
MOCK cuMemAddressFree(unsigned long long at, size_t bytes) {
  MOCK_ENTER("free_addresses");
  return state().virtual_memory.free(at, bytes) ? 0 : kInvalidValue;
}
MOCK cuMemMap(unsigned long long at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long) {
  MOCK_ENTER("map");
  if (state().multicast.has(handle)) {
    if (offset != 0 || !state().virtual_memory.is_reserved(at, bytes)) return kInvalidValue;
    const std::vector<char *> members = state().multicast.map(handle, at, bytes);
    if (members.empty()) return mock::kNotReadyYet;
    emulation::emulator().add_team(reinterpret_cast<char *>(at), bytes, members);
    return 0;
  }
  return offset == 0 && state().virtual_memory.map(at, bytes, handle) ? 0 : kInvalidValue;
}
MOCK cuMemUnmap(unsigned long long at, size_t bytes) {
  MOCK_ENTER("unmap");
  State &all = state();
  if (const mock::Multicast::Mapping *team = all.multicast.mapping(at); team != nullptr && team->bytes == bytes) {
    for (const char *member : team->members) emulation::emulator().close_region(member);
    emulation::emulator().drop_team(reinterpret_cast<const char *>(at));
    return all.multicast.unmap(at), 0;
  }
  if (!all.virtual_memory.is_mapping(at, bytes)) return kInvalidValue;
  emulation::emulator().close_region(reinterpret_cast<void *>(at));
  return all.virtual_memory.unmap(at), 0;
}
// Peer access of contexts does not count, only what is said here.
MOCK cuMemSetAccess(unsigned long long at, size_t bytes, const mock::Access *wanted, size_t count) {
  MOCK_ENTER("set_access");
  State &all = state();
  if (const mock::Multicast::Mapping *team = all.multicast.mapping(at); team != nullptr && team->bytes == bytes) {
    if (count != 1 || check_device(wanted->device) != 0) return kInvalidValue;
    const int device = machine_device(wanted->device);
    if (!all.multicast.has_device(*team, device)) return kInvalidDevice;
    for (const char *member : team->members) emulation::emulator().open_region(member, bytes, static_cast<uint32_t>(device));
    return 0;
  }
  if (!all.virtual_memory.is_mapping(at, bytes) || count != 1 || wanted->location != 1) return kInvalidValue;
  if (const int wrong = check_device(wanted->device)) return wrong;
  const int device = machine_device(wanted->device), owner = all.virtual_memory.mapping(at)->device;
  if (device != owner && !may_reach(device, owner)) return kInvalidDevice;
  if (mock::names_pair("MOCK_NO_VMM", device, owner) && device != owner) return kNotSupported;
  if (device != owner && fault("opens no virtual memory")) return 0;
  emulation::emulator().open_region(reinterpret_cast<void *>(at), bytes, static_cast<uint32_t>(device));
  if (spoils(device, owner)) emulation::emulator().spoil_region(reinterpret_cast<void *>(at));
  return 0;
}
MOCK cuMemExportToShareableHandle(void *shareable, unsigned long long handle, int type, unsigned long long) {
  MOCK_ENTER("export");
  if (state().multicast.has(handle)) {
    const int object = fcntl(state().multicast.file(handle), F_DUPFD, 0);
    return std::memcpy(shareable, &object, sizeof object), object < 0 ? kOutOfMemory : 0;
  }
  const mock::VirtualPiece *piece = state().virtual_memory.find(handle);
  if (piece == nullptr || (piece->shareable & type) == 0 || type != mock::kShareable) return kInvalidValue;
  const int file = fcntl(piece->file, F_DUPFD, 0);
  if (file < 0) return kOutOfMemory;
  return std::memcpy(shareable, &file, sizeof file), 0;
}
MOCK cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int type) {
  MOCK_ENTER("import");
  if (type != mock::kShareable || setting("MOCK_VMM", 1) == 0) return kNotSupported;
  const int file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  if (*handle = state().multicast.import(file); *handle != 0) return 0;
  *handle = state().virtual_memory.import(file);
  return *handle == 0 ? kInvalidValue : 0;
}
MOCK cuMulticastGetGranularity(size_t *bytes, const mock::MulticastProperties *, int) { return *bytes = mock::kGranularity, 0; }
MOCK cuMulticastCreate(unsigned long long *handle, const mock::MulticastProperties *wanted) {
  MOCK_ENTER("multicast_create");
  if (setting("MOCK_MULTICAST", 1) == 0) return kNotSupported;
  if (wanted->bytes == 0 || wanted->bytes % mock::kGranularity != 0 || wanted->ndevices == 0 || wanted->flags != 0)
    return kInvalidValue;
  return *handle = state().multicast.create(*wanted), 0;
}
MOCK cuMulticastAddDevice(unsigned long long handle, int device) {
  MOCK_ENTER("multicast_add");
  if (!state().multicast.has(handle) || check_device(device) != 0) return kInvalidValue;
  return state().multicast.add(handle, machine_device(device));
}
MOCK cuMulticastBindMem(unsigned long long handle, size_t to, unsigned long long memory, size_t from, size_t bytes,
                        unsigned long long flags) {
  MOCK_ENTER("multicast_bind");
  State &all = state();
  const mock::VirtualPiece *piece = all.virtual_memory.find(memory);
  const uint64_t at = all.virtual_memory.where(memory);
  if (!all.multicast.has(handle) || piece == nullptr || piece->bytes != bytes || to != 0 || from != 0 || flags != 0 || at == 0)
    return kInvalidValue;
  return all.multicast.bind(handle, piece->device, at, bytes);
}
// A reset has destroyed the events of its context, so their handles must not be used.
static void check_context(const MockEvent &event) {
  for (const MockContext &context : contexts)
    if (event.context == 0 || context.id == event.context) return;
  std::fprintf(stderr, "mock driver: an event of a context that was reset\n");
  std::abort();
}
MOCK cuEventCreate(MockEvent **event, unsigned) {
  MOCK_ENTER("event_create");
  *event = new MockEvent;
  if (current() != nullptr) (*event)->context = current()->id;
  return 0;
}
MOCK cuEventDestroy_v2(MockEvent *event) {
  MOCK_ENTER("event_destroy");
  check_context(*event);
  return delete event, 0;
}
MOCK cuEventRecord(MockEvent *event, void *stream) {
  MOCK_ENTER("record");
  return state().streams.record(*event, key_of(stream));
}
MOCK cuEventRecordWithFlags(MockEvent *event, void *stream, unsigned flags) {
  MOCK_ENTER("record");
  mock::Streams<Work> &streams = state().streams;
  return flags == 0 ? streams.record(*event, key_of(stream)) : streams.record_external(*event, key_of(stream));
}
MOCK cuEventSynchronize(const MockEvent *event) {
  MOCK_ENTER("synchronize_event");
  MOCK_UNLESS_CAPTURING;
  return state().runner.wait(hold, event->launches);
}
MOCK cuEventQuery(const MockEvent *event) {
  MOCK_ENTER("query");
  check_context(*event);
  MOCK_UNLESS_CAPTURING;
  std::vector<std::pair<Ids, mock::UserObjects>> &dying = state().dying;
  dying.erase(std::remove_if(dying.begin(), dying.end(), [](const auto &one) { return state().runner.has_ended(one.first); }),
              dying.end());
  if (fault("frees at once")) return 0;  // so that it takes all calls for ended
  if (event->graph != nullptr) return kCapturedEvent;
  return state().runner.has_ended(event->launches) ? state().runner.failed() : kNotReady;
}
MOCK cuStreamWaitEvent(void *stream, MockEvent *event, unsigned flags) {
  MOCK_ENTER("wait");
  if (waits_before >= 0 && --waits_before < 0) return 0;
  mock::Streams<Work> &streams = state().streams;
  return flags == 0 ? streams.wait(key_of(stream), *event) : streams.wait_external(key_of(stream), *event);
}
struct MemoryOperation {
  uint32_t operation;
  unsigned long long at;
  uint64_t value;
  uint32_t flags;
  unsigned long long alias;
  uint64_t unused;
};
// Writes of 32 bits with their barrier, and waits for any bit of 64.
MOCK cuStreamBatchMemOp_v2(void *stream, unsigned count, const MemoryOperation *wanted, unsigned flags) {
  MOCK_ENTER("memory_operations");
  if (current() == nullptr) return kInvalidContext;
  if (count == 0 || count >= 256 || flags != 0) return kInvalidValue;
  std::vector<MemoryOperation> operations;
  for (const MemoryOperation *one = wanted; one != wanted + count; ++one) {
    const bool is_write = one->operation == 2 && one->flags == 0, is_wait = one->operation == 4 && one->flags == 2;
    if (!is_write && !is_wait) return kNotSupported;
    ++state().calls[is_write ? "write_value" : "wait_value"];
    if (operations_before < 0 || --operations_before >= 0) operations.push_back(*one);
  }
  const auto body = [operations] {
    for (const MemoryOperation &one : operations)
      if (one.operation == 2)
        emulation::emulator().tell(reinterpret_cast<uint32_t *>(one.at), static_cast<uint32_t>(one.value));
      else
        emulation::emulator().await(reinterpret_cast<const uint64_t *>(one.at), one.value);
  };
  const StreamKey key = key_of(stream);
  return put({body, 1, 1, 0, key.first, true}, key);
}
MOCK cuStreamCreate(void **stream, unsigned flags) {
  MOCK_ENTER("stream_create");
  if (current() == nullptr) return kInvalidContext;
  MockStream *made = free_streams.empty() ? new MockStream : free_streams.back();
  if (!free_streams.empty()) free_streams.pop_back();
  *made = {current()->device, ++last_stream};
  if ((flags & 1) != 0) state().streams.set_non_blocking({made->device, made});
  return *stream = made, 0;
}
// Work on the stream goes on.
MOCK cuStreamDestroy_v2(MockStream *stream) {
  MOCK_ENTER("stream_destroy");
  State &all = state();
  const StreamKey key{stream->device, stream};
  all.streams.retire(key, {stream->device, reinterpret_cast<void *>(stream->id)});
  all.numbers.erase(key);
  all.queues.erase(key);
  free_streams.push_back(stream);
  return 0;
}
MOCK cuStreamGetId(void *stream, uint64_t *id) {
  MOCK_ENTER("stream_id");
  const StreamKey key = key_of(stream);
  // In every mode, as a driver for CUDA 13.0 does.
  if (auto *graph = state().streams.capturing(key); graph != nullptr) return graph->broken = mock::kUnsupported;
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  *id = handle > 2 ? static_cast<MockStream *>(stream)->id : reinterpret_cast<uint64_t>(key.second);
  if (*id == 0) *id = static_cast<uint64_t>(key.first) + 1;  // the legacy stream of a device
  if (fault("tells streams by handles")) *id = handle + 1;
  return 0;
}
MOCK cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *number, MockGraph **captured, const void **, size_t *) {
  MOCK_ENTER("is_capturing");
  MockGraph *graph = state().streams.capturing(key_of(stream));
  *status = graph != nullptr;
  if (graph != nullptr) *number = graph->number;
  if (graph != nullptr && captured != nullptr) *captured = graph;
  return 0;
}
MOCK cuThreadExchangeStreamCaptureMode(int *mode) {
  const mock::Runner::Hold hold(state().runner);
  if (!fault("never relaxes captures")) std::swap(*mode, capture_mode);
  return 0;
}
MOCK cuStreamBeginCapture_v2(void *stream, int) {
  MOCK_ENTER("begin_capture");
  return state().streams.begin(key_of(stream));
}
MOCK cuStreamEndCapture(void *stream, MockGraph **graph) {
  MOCK_ENTER("end_capture");
  return state().streams.end(key_of(stream), graph);
}
MOCK cuGraphInstantiateWithFlags(MockGraph **ready, const MockGraph *graph, unsigned long long) {
  MOCK_ENTER("instantiate");
  return *ready = new MockGraph(*graph), 0;
}
using ObjectHandle = std::shared_ptr<const mock::UserObject>;
MOCK cuUserObjectCreate(ObjectHandle **object, void *pointer, void (*destroy)(void *), unsigned count, unsigned flags) {
  MOCK_ENTER("user_object_create");
  if (count != 1 || flags != 1) return kInvalidValue;
  return *object = new ObjectHandle(new mock::UserObject{pointer, destroy}), 0;
}
MOCK cuUserObjectRelease(ObjectHandle *object, unsigned count) {
  MOCK_ENTER("user_object_release");
  return delete object, count == 1 ? 0 : kInvalidValue;
}
// Gives the caller's reference to the graph.
MOCK cuGraphRetainUserObject(MockGraph *graph, ObjectHandle *object, unsigned count, unsigned flags) {
  MOCK_ENTER("graph_retain");
  if (graph == nullptr || count != 1 || flags != 1) return kInvalidValue;
  graph->objects.push_back(*object);
  return delete object, 0;
}
void destroy_graph(MockGraph *graph) {
  const mock::Runner::Hold hold(state().runner);
  if (!state().runner.has_ended(graph->running)) state().dying.emplace_back(graph->running, graph->objects);
  delete graph;
}
MOCK cuGraphDestroy(MockGraph *graph) { return destroy_graph(graph), 0; }
MOCK cuGraphExecDestroy(MockGraph *graph) { return destroy_graph(graph), 0; }
MOCK cuGraphLaunch(MockGraph *graph, void *stream) {
  MOCK_ENTER("graph_launch");
  const StreamKey key = key_of(stream);
  State &all = state();
  Ids before = all.streams.waits(key);
  before.insert(graph->running.begin(), graph->running.end());
  if (!rule("streams run at once")) before.insert(all.newest[key.first].begin(), all.newest[key.first].end());
  while (graph->ids.size() < graph->nodes.size()) graph->ids.push_back(all.runner.add_stream());
  std::vector<Ids> ends;
  Ids made = before;
  for (size_t n = 0; n < graph->nodes.size(); ++n) {
    const mock::Node<Work> &node = graph->nodes[n];
    Ids after = MockGraph::ends_of(node.after, ends);
    after.insert(before.begin(), before.end());
    if (node.waits_for != nullptr && !fault("graphs wait for nothing"))
      after.insert(node.waits_for->launches.begin(), node.waits_for->launches.end());
    if (node.records != nullptr) node.records->launches = after;
    // On a stream that nothing else knows: its order within the graph is all that counts.
    if (node.waits_for == nullptr && node.records == nullptr)
      after = {all.runner.add(node.launching, graph->ids[n], emulation::kNoQueue, after)};
    made.insert(after.begin(), after.end());
    ends.push_back(after);
  }
  graph->running = all.newest[key.first] = made;
  all.streams.set_waits(key, made);
  return all.runner.failed();
}
