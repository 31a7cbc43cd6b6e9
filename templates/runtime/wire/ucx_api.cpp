#include "wire/ucx_api.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include "base/environment.h"
#include "base/library.h"
#include "base/log.h"

namespace collc::ucx {
namespace {

constexpr unsigned kMajor = 1, kOldestMinor = 13, kNewestMinor = 22;

struct Loaded {
  Api api = {};
  std::string problem;
};

template <typename Function>
void load_symbol(void *library, const char *name, Function *function, std::string *missing_symbol) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing_symbol->empty()) *missing_symbol = name;
}
#define COLLC_FIND_UCX(name) load_symbol(library, #name, &api.name, &missing_symbol)

// Keeps UCX from writing messages to standard output, and from replacing the program's handlers of SIGSEGV and other signals.
// UCX does not promise these two functions, so it is used without them, too.
void silence(void *library) {
  using Set = Status8 (*)(const char *name, const char *value);
  using Disable = void (*)();
  if (const auto set = reinterpret_cast<Set>(dlsym(library, "ucs_global_opts_set_value")))
    if (read_text("UCX_LOG_LEVEL") == nullptr) set("LOG_LEVEL", "fatal");
  if (const auto disable = reinterpret_cast<Disable>(dlsym(library, "ucs_debug_disable_signals")))
    if (read_text("UCX_ERROR_SIGNALS") == nullptr) disable();
}

std::string load_symbols(void *library, Api *api_out) {
  Api &api = *api_out;
  std::string missing_symbol;
  COLLC_FIND_UCX(ucp_get_version);
  COLLC_FIND_UCX(ucp_config_read);
  COLLC_FIND_UCX(ucp_config_modify);
  COLLC_FIND_UCX(ucp_config_release);
  COLLC_FIND_UCX(ucp_init_version);
  COLLC_FIND_UCX(ucp_cleanup);
  COLLC_FIND_UCX(ucp_worker_create);
  COLLC_FIND_UCX(ucp_worker_destroy);
  COLLC_FIND_UCX(ucp_worker_get_address);
  COLLC_FIND_UCX(ucp_worker_release_address);
  COLLC_FIND_UCX(ucp_worker_progress);
  COLLC_FIND_UCX(ucp_ep_create);
  COLLC_FIND_UCX(ucp_ep_close_nbx);
  COLLC_FIND_UCX(ucp_ep_flush_nbx);
  COLLC_FIND_UCX(ucp_tag_send_nbx);
  COLLC_FIND_UCX(ucp_tag_recv_nbx);
  COLLC_FIND_UCX(ucp_tag_recv_request_test);
  COLLC_FIND_UCX(ucp_request_check_status);
  COLLC_FIND_UCX(ucp_request_cancel);
  COLLC_FIND_UCX(ucp_request_free);
  COLLC_FIND_UCX(ucs_status_string);
  return missing_symbol;
}

Loaded load_now() {
  Loaded loaded;
  if (getauxval(AT_SECURE) != 0) {
    // UCX's own variables name the modules that it loads.
    loaded.problem = "a program with more rights than its caller does not open UCX";
    return loaded;
  }
  const char *path_variable = read_path("COLLC_UCX");
  const std::string name = path_variable != nullptr ? path_variable : "libucp.so.0";
  std::string why;
  void *const library = open_library(name, RTLD_NOW | RTLD_LOCAL, &why);
  if (library == nullptr) {
    loaded.problem = "no UCX was found (" + why + "); set COLLC_UCX to a libucp.so.0";
    return loaded;
  }
  const std::string missing_symbol = load_symbols(library, &loaded.api);
  Dl_info info;
  void *const symbol = dlsym(library, "ucp_get_version");
  const std::string path = symbol != nullptr && dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : name;
  if (!missing_symbol.empty()) {
    loaded.problem = printable(path) + " is no UCX of version 1.13 or later: it has no " + missing_symbol;
    return loaded;
  }
  unsigned major = 0, minor = 0, release = 0;
  loaded.api.ucp_get_version(&major, &minor, &release);
  loaded.api.where = format("UCX %u.%u.%u (%s)", major, minor, release, printable(path).c_str());
  if (major != kMajor || minor < kOldestMinor) {
    loaded.problem = loaded.api.where + " cannot be used: 1.13 to 1.22 can";
    return loaded;
  }
  if (minor > kNewestMinor) log(LogLevel::kInfo, "%s is newer than any tested version", loaded.api.where.c_str());
  silence(library);
  return loaded;
}

}  // namespace

Status load(const Api **api) {
  static const Loaded *const loaded = new Loaded(load_now());
  *api = &loaded->api;
  return loaded->problem.empty() ? Status() : fail(ncclSystemError, "engine ucx: %s", loaded->problem.c_str());
}

}  // namespace collc::ucx
