#include "communicator/profiler.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>

#include "base/element.h"
#include "base/environment.h"
#include "base/library.h"
#include "base/log.h"

namespace collc {
namespace plugin {

// The interface of NCCL's profiler plugins: src/include/plugin/nccl_profiler.h and profiler/profiler_v4.h to _v6.h of NCCL
// 2.30. The three versions describe an event by the same fields, followed by others. Version 4 reads only the first of the
// eight bytes (little-endian) of `type`.
enum EventType : uint64_t {
  kGroup = 1,
  kCollective = 2,
  kTransfer = 4,
  kGroupApi = 256,
  kCollectiveApi = 512,
  kTransferApi = 1024
};
enum EventState : int { kGroupStartEnds = 23, kGroupEndStarts = 24 };

struct Description {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      int root;
      void *stream;
      bool captured;
    } collective_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      void *stream;
      bool captured;
    } transfer_api;
    struct {
      uint64_t number;
      const char *function;
      const void *input;
      void *output;
      size_t count;
      int root;
      const char *type;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
      void *group;
    } collective;
    struct {
      const char *function;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
      uint8_t channels;
      void *group;
    } transfer;
    unsigned char room[256];  // more than any version has
  };
};

namespace {

using Log = void (*)(int level, unsigned long flags, const char *file, int line, const char *pattern, ...);
using Init4 = int (*)(void **, int *, const char *, uint64_t, int, int, int, Log);
using Init5 = int (*)(void **, uint64_t, int *, const char *, int, int, int, Log);  // and 6

struct Interface {
  const char *name;
  void (*init)();
  int (*start)(void *context, void **handle, Description *description);
  int (*stop)(void *handle);
  int (*record)(void *handle, int state, void *arguments);
  int (*finalize)(void *context);
};

struct Plugin {
  const Interface *calls = nullptr;
  int version = 0;
  int wanted = 0;  // the events that it asks for; it may change them at any time
  bool wants(uint64_t types) const { return (__atomic_load_n(&wanted, __ATOMIC_RELAXED) & static_cast<int>(types)) != 0; }
};

// A path, the name of a library, or a part of that name.
void *open_plugin(const char *name) {
  std::string why, why_not_part;
  void *library = open_library(name, RTLD_NOW | RTLD_LOCAL, &why);
  if (library == nullptr && std::strchr(name, '/') == nullptr)
    library = open_library(format("libnccl-profiler-%s.so", name), RTLD_NOW | RTLD_LOCAL, &why_not_part);
  if (library == nullptr) log(LogLevel::kWarn, "NCCL_PROFILER_PLUGIN: %s", why.c_str());
  return library;
}

Plugin load() {
  Plugin plugin;
  const char *const name = read_path("NCCL_PROFILER_PLUGIN");
  if (name == nullptr || std::strcmp(name, "none") == 0) return plugin;
  void *const library = open_plugin(name);
  if (library == nullptr) return plugin;
  for (int version = 6; version >= 4 && plugin.calls == nullptr; --version) {
    plugin.calls = static_cast<const Interface *>(dlsym(library, format("ncclProfiler_v%d", version).c_str()));
    plugin.version = version;
  }
  if (plugin.calls == nullptr)
    log(LogLevel::kWarn, "NCCL_PROFILER_PLUGIN: %.200s has none of ncclProfiler_v4, _v5 and _v6", printable(name).c_str());
  return plugin;
}

// Never unloaded: a thread of the plugin may outlive main().
Plugin &loaded() {
  static auto *const plugin = new Plugin(load());
  return *plugin;
}

// NCCL's levels: 1 version, 2 warnings, 3 information, 4 abort, 5 trace.
__attribute__((format(printf, 5, 6))) void note(int level, unsigned long, const char *, int, const char *pattern, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  log(level <= 2 ? LogLevel::kWarn : level == 5 ? LogLevel::kTrace : LogLevel::kInfo, "profiler: %s", text);
}

bool is_transfer(const Call &call) { return call.work == Work::kSend || call.work == Work::kReceive; }

// Returns NCCL's name of a call.
const char *name_of(const Call &call) {
  if (call.work == Work::kSend) return "Send";
  if (call.work == Work::kReceive) return "Recv";
  static const char *const names[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
                                      "Gather",    "Scatter",   "AlltoAll",      "SendRecv"};
  static_assert(std::size(names) == kCollectives, "a name for each");
  return names[static_cast<uint32_t>(call.collective)];
}

const char *name_of(ncclDataType_t type) {
  static const char *const names[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                      "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                      "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  static_assert(std::size(names) == ncclNumTypes, "a name for each");
  return names[type];
}

const char *protocol_name(uint32_t protocol) { return protocol == 0 ? "SIMPLE" : protocol == 1 ? "LL" : "LL128"; }

void *start(void *context, Description *description) {
  void *handle = nullptr;
  return loaded().calls->start(context, &handle, description) == 0 ? handle : nullptr;
}

}  // namespace
}  // namespace plugin

Profile::Profile(void *context, int rank) : context_(context), rank_(rank), process_(getpid()) {}

std::unique_ptr<Profile> Profile::make(const RankContext &context, uint64_t id, const std::string &name) {
  plugin::Plugin &plugin = plugin::loaded();
  if (plugin.calls == nullptr) return nullptr;
  void *made = nullptr;
  const int machines = static_cast<int>(context.placement.nmachines()), nranks = static_cast<int>(context.nranks);
  const int rank = static_cast<int>(context.rank);
  const char *const called = name.empty() ? nullptr : name.c_str();
  int failed = 0;
  if (plugin.version == 4) {
    const auto init = reinterpret_cast<plugin::Init4>(plugin.calls->init);
    failed = init(&made, &plugin.wanted, called, id, machines, nranks, rank, plugin::note);
  } else {
    const auto init = reinterpret_cast<plugin::Init5>(plugin.calls->init);
    failed = init(&made, id, &plugin.wanted, called, machines, nranks, rank, plugin::note);
  }
  if (failed != 0) {
    log(LogLevel::kWarn, "NCCL_PROFILER_PLUGIN: the plugin fails with %d: rank %d goes on without it", failed, rank);
    return nullptr;
  }
  log(LogLevel::kInfo, "rank %d: profiler %s, version %d", rank, plugin.calls->name, plugin.version);
  return std::unique_ptr<Profile>(new Profile(made, rank));
}

Profile::~Profile() {
  if (process_ == getpid()) plugin::loaded().calls->finalize(context_);
}

void *CallEvents::open(const Profile &profile, plugin::Description *description) {
  description->rank = profile.rank_;
  void *const handle = plugin::start(profile.context_, description);
  if (handle != nullptr) open_.push_back(handle);
  return handle;
}

void *CallEvents::open_api(const Profile &profile, const Call &call) {
  using namespace plugin;
  const Plugin &plugin = loaded();
  if (api_ == nullptr) {
    Description description = {};
    description.type = kGroupApi;
    description.group_api = {false, 1};
    api_ = open(profile, &description);
    for (const int state : {kGroupStartEnds, kGroupEndStarts})
      if (api_ != nullptr) plugin.calls->record(api_, state, nullptr);
  }
  const bool moves = is_transfer(call);
  if (!plugin.wants(moves ? kTransfer | kTransferApi : kCollective | kCollectiveApi)) return nullptr;
  Description description = {};
  description.parent = api_;
  description.type = moves ? kTransferApi : kCollectiveApi;
  if (moves)
    description.transfer_api = {name_of(call), call.count, name_of(call.type), call.stream, false};
  else
    description.collective_api = {name_of(call), call.count, name_of(call.type), call.root, call.stream, false};
  return open(profile, &description);
}

void *CallEvents::open_group(const Profile &profile) {
  for (const Group &one : groups_)
    if (one.profile == &profile) return one.handle;
  plugin::Description description = {};
  description.type = plugin::kGroup;
  groups_.push_back({&profile, open(profile, &description)});
  return groups_.back().handle;
}

void CallEvents::open_call(const Profile &profile, const Call &call, const Within &within) {
  const uint32_t channels = within.program == nullptr ? 0 : within.program->nchannels;
  const auto most = static_cast<uint8_t>(channels < UINT8_MAX ? channels : UINT8_MAX);
  plugin::Description description = {};
  description.parent = plugin::loaded().version > 4 ? within.api : within.group;
  const char *const function = plugin::name_of(call), *const type = plugin::name_of(call.type);
  if (plugin::is_transfer(call)) {
    void *const buffer = call.work == Work::kSend ? const_cast<void *>(call.input) : call.output;
    description.type = plugin::kTransfer;
    description.transfer = {function, buffer, type, call.count, static_cast<int>(call.peer), most, within.group};
  } else {
    description.type = plugin::kCollective;
    description.collective = {within.number, function, call.input, call.output, call.count,      call.root,
                              type,          most,     0,          "PLAN",      within.protocol, within.group};
  }
  open(profile, &description);
}

void CallEvents::add(Profile &profile, RankBackend &rank, const Call &call) noexcept try {
  using namespace plugin;
  const Plugin &plugin = loaded();
  if (call.work == Work::kNone) return;
  const bool moves = is_transfer(call);
  const uint64_t own = moves ? kTransfer : kCollective, api = moves ? kTransferApi : kCollectiveApi;
  Within within = {};
  within.protocol = "SIMPLE";
  if (!moves) within.number = profile.numbers_[static_cast<uint32_t>(call.collective)]++;
  within.program = call.program;
  const uint64_t bytes = call.count * element_bytes(call.type);
  if (call.alternative != nullptr) within.program = &rank.chooser()->choose(*call.program, *call.alternative, bytes);
  if (within.program != nullptr) within.protocol = protocol_name(rank.protocol_of(*within.program, bytes));
  // A plugin that asks for an event gets those around it, as from NCCL.
  if (!plugin.wants(kGroup | own | kGroupApi | api)) return;
  open_.reserve(open_.size() + 4);
  if (plugin.version > 4) within.api = open_api(profile, call);
  if (plugin.wants(kGroup | own)) within.group = open_group(profile);
  if (plugin.wants(own)) open_call(profile, call, within);
} catch (const std::exception &error) {
  log(LogLevel::kWarn, "profiler: %s", error.what());
}

void CallEvents::end() noexcept {
  for (auto handle = open_.rbegin(); handle != open_.rend(); ++handle) plugin::loaded().calls->stop(*handle);
}

}  // namespace collc
