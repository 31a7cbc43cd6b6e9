#include "wire/net_plugin.h"

#include <dlfcn.h>
#include <strings.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstdarg>
#include <map>

#include "base/environment.h"
#include "base/log.h"

namespace collc {
namespace {

using nccl_net::Result;

constexpr char kUsual[] = "libnccl-net.so";
constexpr char kTable[] = "ncclNetPlugin_v";
constexpr int kFirstVersion = 2;  // that any plugin had
// A process has one context of a plugin, so it is nobody's; not 0.
constexpr uint64_t kCommunicator = 0x636f6c6c63;

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

// All that have been opened, by name and by table. For whoever has the ForeignTurn.
struct KnownPlugins {
  std::map<std::string, NetPlugin *> by_name;
  std::map<const nccl_net::Table *, std::unique_ptr<NetPlugin>> by_table;
};
KnownPlugins &known_plugins() {
  static auto *const known = new KnownPlugins;  // outlives every thread
  return *known;
}

std::string lacks_table(const std::string &name, int newest) {
  const std::string has = newest < kFirstVersion ? printable(name) + " is no network plugin of NCCL: it has no " + kTable +
                                                       std::to_string(nccl_net::kNewest)
                                                 : format("%s has %s%d at most", printable(name).c_str(), kTable, newest);
  return has + format("; versions %d to %d can be used", nccl_net::kOldest, nccl_net::kNewest);
}

}  // namespace

// As NCCL searches a list: past those that do not start or have no devices.
Status NetPlugin::load(const std::string &named, NetPlugin **found) {
  const ForeignTurn turn;
  COLLC_RETURN_IF_FAILED(ForeignTurn::check("plugin"));
  if (getauxval(AT_SECURE) != 0)
    return fail(ncclSystemError, "engine plugin: a program with more rights than its caller opens no plugin");
  KnownPlugins &known = known_plugins();
  NetPlugin *&chosen = known.by_name[named];
  if (chosen != nullptr) {
    *found = chosen;
    return {};
  }
  const char *const usual = read_path("NCCL_NET_PLUGIN");
  const std::string names = !named.empty() ? named : usual != nullptr ? usual : kUsual;
  std::string why, useless;
  for (const std::string &name : split_list(names)) {
    if (strcasecmp(name.c_str(), "none") == 0 || name.empty()) continue;
    void *const library = open_library(name, &why);
    if (library == nullptr) continue;
    if (!useless.empty()) useless += "; ";
    int version = 0;
    const nccl_net::Table *const table = find_table(library, &version);
    if (table == nullptr) {
      useless += lacks_table(name, version);
      dlclose(library);
      continue;
    }
    // Whatever name it was found by.
    std::unique_ptr<NetPlugin> &plugin = known.by_table[table];
    if (plugin == nullptr) plugin = std::make_unique<NetPlugin>(table, version, path_of(table, name));
    const Status status = plugin->start();
    if (status.ok()) {
      *found = chosen = plugin.get();
      return {};
    }
    useless += status.text();
  }
  if (!useless.empty()) return fail(ncclSystemError, "engine plugin: %s", useless.c_str());
  return fail(ncclSystemError, "engine plugin: no network plugin of NCCL was found (%s); NCCL_NET_PLUGIN names one",
              why.empty() ? printable(names).c_str() : printable(why).c_str());
}

NetPlugin::NetPlugin(const nccl_net::Table *table, int version, const std::string &path)
    : table_(table), version_(version), name_(printable(table->name != nullptr ? table->name : "a plugin without a name")) {
  where_ = format("%s (version %d, %s)", name_.c_str(), version_, path.c_str());
}

Status NetPlugin::start() {
  if (ndevices_ > 0) return {};
  Result result = 0;
  if (!begun_) {
    // Some set it where their network needs that, for the NCCL of their process; here it would be of the ranks of this process alone.
    keep_text("NCCL_PROTO");
    if (version_ >= 11)
      result = reinterpret_cast<nccl_net::Init11>(table_->init)(&context_, kCommunicator, &config_, note, ignore_event);
    else if (version_ == 10)
      result = reinterpret_cast<nccl_net::Init10>(table_->init)(note, ignore_event);
    else
      result = reinterpret_cast<nccl_net::Init8>(table_->init)(note);
  }
  begun_ |= result == 0;
  int count = 0;
  const Result asked = begun_ || version_ < 11 ? table_->devices(&count) : result;
  if (!begun_ && (asked != 0 || count < 1))
    return fail(ncclSystemError, "%s does not start: %s", where_.c_str(), text_of(result));
  // Before version 11 a plugin starts once in a process, and NCCL may have done that.
  if (!begun_) log(LogLevel::kInfo, "plugin: %s has devices, though its start answers %s", where_.c_str(), text_of(result));
  if (asked != 0) return fail(ncclSystemError, "%s does not tell its devices: %s", where_.c_str(), text_of(asked));
  if (count < 1) return fail(ncclSystemError, "%s has no devices", where_.c_str());
  ndevices_ = count;
  return {};
}

void NetPlugin::note_use(const char *what) {
  if (std::find(used_.begin(), used_.end(), what) != used_.end()) return;
  used_.push_back(what);
  end_before_foreign_again();
}

Status NetPlugin::check(const char *what, Result result) {
  note_use(what);
  if (result == 0) return {};
  return fail(ncclSystemError, "%s of %s: %s", what, name_.c_str(), text_of(result));
}

}  // namespace collc
