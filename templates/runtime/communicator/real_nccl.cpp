#include "communicator/real_nccl.h"

#include <dlfcn.h>

#include <cstring>

#include "base/environment.h"
#include "base/library.h"

namespace collc {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kDeepBind = 0;  // sanitizers refuse it
#else
constexpr int kDeepBind = RTLD_DEEPBIND;
#endif

struct Real {
  void *handle = nullptr;
  std::string where;
};

Real load() {
  Real real;
  const char *chosen = read_path("COLLC_NCCL");
  const std::string name = chosen != nullptr ? chosen : "libnccl.so.2";
  // Its own calls to itself must not come back to us, although we stand before it in the search order.
  std::string why;
  real.handle = open_library(name, RTLD_NOW | RTLD_LOCAL | kDeepBind, &why);
  if (real.handle == nullptr) {
    real.where = "no NCCL was found to take it (" + why + "); set COLLC_NCCL";
    return real;
  }
  if (dlsym(real.handle, "collc_tables") != nullptr) {
    real.handle = nullptr;
    real.where = "no NCCL was found to take it: " + name + " is a library of collc; set COLLC_NCCL";
    return real;
  }
  Dl_info info;
  void *symbol = dlsym(real.handle, "ncclGetVersion");
  real.where = symbol != nullptr && dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : name;
  return real;
}

const Real &real() {
  static const Real *const loaded = new Real(load());
  return *loaded;
}

// PyTorch opens the real NCCL by its absolute path; unless it was opened with RTLD_DEEPBIND before, its calls to itself
// would then bind to us.
__attribute__((constructor)) void load_before_others() {
  const char *preload = read_path("LD_PRELOAD");
  if (preload == nullptr || std::strstr(preload, "collc") == nullptr) return;
  // dlopen() of a bare name takes the first loaded object that has the name. `collc run` puts a link to this library with
  // the name libnccl.so.2 into LD_LIBRARY_PATH. Looking it up gives the name to this library before another NCCL has it.
  // RTLD_NOLOAD: if another file is found, it is not loaded.
  dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  real();
}

}  // namespace

void *find_real(const char *function) { return real().handle != nullptr ? dlsym(real().handle, function) : nullptr; }

bool have_real() { return real().handle != nullptr; }

std::string describe_real() { return printable(real().where); }

std::string describe_missing() { return have_real() ? "this NCCL does not have it" : describe_real(); }

}  // namespace collc
