#include "wire/plugin_net.h"

#include <dlfcn.h>
#include <strings.h>
#include <sys/auxv.h>

#include <climits>
#include <cstdarg>
#include <map>

#include "base/environment.h"
#include "base/log.h"
#include "wire/cards.h"

namespace collc {
namespace {

using nccl_net::Result;

constexpr char kUsual[] = "libnccl-net.so";
constexpr char kTable[] = "ncclNetPlugin_v";
constexpr int kFirstVersion = 2;  // that any plugin had

const char *text_of(Result result) {
  static const char *const texts[] = {"",
                                      "an error of CUDA",
                                      "a system error",
                                      "an internal error",
                                      "an invalid argument",
                                      "invalid usage",
                                      "a remote error",
                                      "still in progress"};
  return result > 0 && result < static_cast<Result>(std::size(texts)) ? texts[result] : "an unknown error";
}

// What a plugin says. It may do so from threads of its own.
__attribute__((format(printf, 5, 6))) void note(int level, unsigned long, const char *, int, const char *pattern, ...) {
  const LogLevel as = level == nccl_net::kWarn   ? LogLevel::kWarn
                      : level == nccl_net::kInfo ? LogLevel::kInfo
                                                 : LogLevel::kTrace;
  if (!logs(as)) return;
  va_list arguments;
  va_start(arguments, pattern);
  const std::string text = format_list(pattern, arguments);
  va_end(arguments);
  log(as, "network plugin: %s", text.c_str());
}

// Nobody follows its events.
Result ignore_event(void **event, int, void *, int64_t, void *) {
  if (event != nullptr) *event = nullptr;
  return 0;
}

// As NCCL's openPluginLib does (src/plugin/plugin_open.cc): as it is, else as part of a name.
void *open_library(const std::string &name, std::string *why) {
  const auto attempt = [why](const std::string &file) {
    void *const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    const char *const reason = dlerror();
    const std::string text = reason != nullptr ? reason : file;
    // One that is there and cannot be opened tells more.
    if (why->empty() || text.find("No such file") == std::string::npos) *why = text;
    return library;
  };
  if (void *const library = attempt(name)) return library;
  const bool whole = name.size() >= 3 && name.compare(0, 3, "lib") == 0 && name.compare(name.size() - 3, 3, ".so") == 0;
  if (whole || name.find('/') != std::string::npos) return nullptr;
  return attempt("libnccl-net-" + name + ".so");
}

std::string path_of(const void *table, const std::string &name) {
  Dl_info info;
  return printable(dladdr(table, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : name);
}

// The newest table that the library has of those whose layout is known; none: the newest that it has at all.
const nccl_net::Table *find_table(void *library, int *version) {
  const auto find = [library](int one) { return dlsym(library, (kTable + std::to_string(one)).c_str()); };
  for (*version = nccl_net::kNewest; *version >= nccl_net::kOldest; --*version)
    if (void *const table = find(*version)) return static_cast<const nccl_net::Table *>(table);
  while (*version >= kFirstVersion && find(*version) == nullptr) --*version;
  return nullptr;
}

Status open_plugin(const std::string &named, std::unique_ptr<NetPlugin> *found) {
  if (getauxval(AT_SECURE) != 0)
    return fail(ncclSystemError, "engine plugin: a program with more rights than its caller opens no plugin");
  const char *const usual = read_path("NCCL_NET_PLUGIN");
  const std::string names = !named.empty() ? named : usual != nullptr ? usual : kUsual;
  std::string why, useless;
  for (const std::string &name : split_list(names)) {
    if (strcasecmp(name.c_str(), "none") == 0 || name.empty()) continue;
    void *const library = open_library(name, &why);
    if (library == nullptr) continue;
    int version = 0;
    if (const nccl_net::Table *const table = find_table(library, &version)) {
      *found = std::make_unique<NetPlugin>(table, version, path_of(table, name));
      return {};
    }
    useless = version < kFirstVersion
                  ? printable(name) + " is no network plugin of NCCL: it has no " + kTable + std::to_string(nccl_net::kNewest)
                  : format("%s has %s%d at most", printable(name).c_str(), kTable, version);
    useless += format("; versions %d to %d can be used", nccl_net::kOldest, nccl_net::kNewest);
    dlclose(library);
  }
  if (!useless.empty()) return fail(ncclSystemError, "engine plugin: %s", useless.c_str());
  return fail(ncclSystemError, "engine plugin: no network plugin of NCCL was found (%s); NCCL_NET_PLUGIN names one",
              why.empty() ? printable(names).c_str() : printable(why).c_str());
}

}  // namespace

Status NetPlugin::load(const std::string &named, NetPlugin **found) {
  const ForeignTurn turn;
  if (ForeignTurn::over()) return fail(ncclSystemError, "engine plugin: the process is ending");
  static auto *const known = new std::map<std::string, std::unique_ptr<NetPlugin>>;  // outlives every thread
  std::unique_ptr<NetPlugin> &plugin = (*known)[named];
  if (plugin == nullptr) COLLC_RETURN_IF_FAILED(open_plugin(named, &plugin));
  *found = plugin.get();
  return {};
}

NetPlugin::NetPlugin(const nccl_net::Table *table, int version, std::string path)
    : table_(table), version_(version), name_(printable(table->name != nullptr ? table->name : "a plugin without a name")) {
  where_ = format("%s (version %d, %s)", name_.c_str(), version_, path.c_str());
}

Status NetPlugin::prepare() {
  if (prepared_ || version_ >= 11) return {};
  const Result result = version_ == 10 ? reinterpret_cast<nccl_net::Init10>(table_->init)(note, ignore_event)
                                       : reinterpret_cast<nccl_net::Init8>(table_->init)(note);
  if (result != 0) return fail(ncclSystemError, "engine plugin: %s does not start: %s", where_.c_str(), text_of(result));
  prepared_ = true;
  return {};
}

Status PluginNet::open(NetPlugin &plugin, uint64_t communicator, const WirePlace &place, std::shared_ptr<PluginNet> *made) {
  const ForeignTurn turn;
  if (ForeignTurn::over()) return fail(ncclSystemError, "engine plugin: the process is ending");
  // Some set it, for all of NCCL in their process; here it would be that of this rank alone.
  const KeptVariable protocol("NCCL_PROTO");
  std::shared_ptr<PluginNet> net(new PluginNet(plugin));
  COLLC_RETURN_IF_FAILED(plugin.prepare());
  COLLC_RETURN_IF_FAILED(net->begin(communicator));
  if (const Status status = net->choose_device(place); !status.ok())
    return fail(status.code(), "engine plugin: %s", status.text().c_str());
  *made = std::move(net);
  return {};
}

Status PluginNet::begin(uint64_t communicator) {
  if (plugin_.version() < 11) return {};
  const auto init = reinterpret_cast<nccl_net::Init11>(table().init);
  const Result result = init(&context_, communicator, &config_, note, ignore_event);
  if (result != 0)
    return fail(ncclSystemError, "engine plugin: %s does not start: %s", plugin_.where().c_str(), text_of(result));
  begun_ = true;
  return {};
}

PluginNet::~PluginNet() {
  const ForeignTurn turn;
  if (begun_ && table().finalize != nullptr && !ForeignTurn::over()) static_cast<void>(table().finalize(context_));
}

Status PluginNet::check(const char *what, Result result) const {
  if (result == 0) return {};
  return fail(ncclSystemError, "%s of %s: %s", what, plugin_.name().c_str(), text_of(result));
}

namespace {

// What all versions tell of a device.
struct Device {
  std::string name, pci_path;
  double mbits = 0;
  int pointers = 0, type = 0;
  uint64_t most_bytes = INT_MAX;
};

template <class Properties>
Result read_device(const nccl_net::Table &table, int number, Device *device) {
  Properties properties = {};
  const Result result = table.properties(number, &properties);
  if (result != 0) return result;
  if (properties.name != nullptr) device->name = printable(properties.name);
  if (properties.pci_path != nullptr) device->pci_path = properties.pci_path;
  device->mbits = properties.mbits;
  device->pointers = properties.pointers;
  device->type = properties.device_type;
  if constexpr (!std::is_same_v<Properties, nccl_net::Properties8>)
    if (properties.most_bytes != 0) device->most_bytes = properties.most_bytes;
  return 0;
}

Result read_device(const NetPlugin &plugin, int number, Device *device) {
  switch (plugin.version()) {
    case 8:
      return read_device<nccl_net::Properties8>(plugin.table(), number, device);
    case 9:
    case 10:
      return read_device<nccl_net::Properties9>(plugin.table(), number, device);
    case 11:
      return read_device<nccl_net::Properties11>(plugin.table(), number, device);
    default:
      return read_device<nccl_net::Properties12>(plugin.table(), number, device);
  }
}

}  // namespace

// The nearest one to a GPU of a rank here, of these the fastest, of these the first.
Status PluginNet::choose_device(const WirePlace &place) {
  int count = 0;
  COLLC_RETURN_IF_FAILED(check("devices", table().devices(&count)));
  uint32_t least = 0;
  std::string name;
  for (int number = 0; number < count; ++number) {
    Device device;
    COLLC_RETURN_IF_FAILED(check("getProperties", read_device(plugin_, number, &device)));
    if ((device.pointers & nccl_net::kHostMemory) == 0 || device.type != nccl_net::kOfHost) continue;
    const uint32_t far = far_from_gpus_at(device.pci_path, place.gpus, kSysFolder);
    if (!device_name_.empty() && (far > least || (far == least && device.mbits <= mbits_))) continue;
    least = far;
    device_ = number;
    mbits_ = device.mbits;
    most_bytes_ = device.most_bytes;
    device_name_ = format("device %s, %d of %d, %g Gbit/s", device.name.c_str(), number + 1, count, mbits_ / 1000);
  }
  if (!device_name_.empty()) return {};
  return fail(ncclSystemError, "%s has %d devices, and none that sends from host memory", plugin_.where().c_str(), count);
}

Status PluginNet::listen(void *handle, void **listening) const {
  *listening = nullptr;
  const Result result = plugin_.version() >= 11
                            ? reinterpret_cast<nccl_net::Listen11>(table().listen)(context_, device_, handle, listening)
                            : reinterpret_cast<nccl_net::Listen8>(table().listen)(device_, handle, listening);
  if (result == 0 && *listening == nullptr) return check("listen", ncclInternalError);
  return check("listen", result);
}

Status PluginNet::connect(void *handle, void **comm) {
  void *on_device = nullptr;  // nothing of it runs on a GPU
  const nccl_net::Any call = table().connect;
  Result result = 0;
  if (plugin_.version() >= 11)
    result = reinterpret_cast<nccl_net::Connect11>(call)(context_, device_, handle, comm, &on_device);
  else if (plugin_.version() == 10)
    result = reinterpret_cast<nccl_net::Connect10>(call)(device_, &config_, handle, comm, &on_device);
  else
    result = reinterpret_cast<nccl_net::Connect8>(call)(device_, handle, comm, &on_device);
  return check("connect", result);
}

Status PluginNet::accept(void *listening, void **comm) const {
  void *on_device = nullptr;
  return check("accept", table().accept(listening, comm, &on_device));
}

namespace {
constexpr int kTag = 0;  // of every message: the order tells them apart
}

Status PluginNet::send(void *comm, void *data, size_t bytes, void *memory, void **request) const {
  *request = nullptr;
  if (bytes > most_bytes_)
    return fail(ncclInvalidUsage, "%zu bytes at once are more than %s takes", bytes, plugin_.name().c_str());
  const nccl_net::Any call = table().send;
  Result result = 0;
  if (plugin_.version() >= 10)
    result = reinterpret_cast<nccl_net::Send10>(call)(comm, data, bytes, kTag, memory, nullptr, request);
  else if (plugin_.version() == 9)
    result = reinterpret_cast<nccl_net::Send9>(call)(comm, data, bytes, kTag, memory, request);
  else
    result = reinterpret_cast<nccl_net::Send8>(call)(comm, data, static_cast<int>(bytes), kTag, memory, request);
  return check("isend", result);
}

Status PluginNet::receive(void *comm, void *data, size_t bytes, void *memory, void **request) const {
  *request = nullptr;  // anything else says that nobody asks for its end
  int tag = kTag, few = static_cast<int>(bytes);
  void *event = nullptr;
  const nccl_net::Any call = table().receive;
  Result result = 0;
  if (plugin_.version() >= 10)
    result = reinterpret_cast<nccl_net::Receive10>(call)(comm, 1, &data, &bytes, &tag, &memory, &event, request);
  else if (plugin_.version() == 9)
    result = reinterpret_cast<nccl_net::Receive9>(call)(comm, 1, &data, &bytes, &tag, &memory, request);
  else
    result = reinterpret_cast<nccl_net::Receive8>(call)(comm, 1, &data, &few, &tag, &memory, request);
  return check("irecv", result);
}

}  // namespace collc
