#include "communicator/ranges.h"

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "base/environment.h"
#include "base/library.h"
#include "base/log.h"
#include "control/call_log.h"

namespace collc {

std::atomic<int (*)(const char *)> push_range{nullptr};

namespace nvtx {
namespace {

// The interface of a program to a library for NVTX 3 (NVIDIA's nvtx3/nvtxDetail/nvtxTypes.h and nvtxImpl.h): tables of
// addresses of function pointers. The library stores its functions there; this file calls two of the module "core".
using Function = void (*)();
constexpr uint32_t kCallbacks = 1, kVersion = 3;                     // numbers of tables
constexpr uint32_t kCore = 1, kModules = 7;                          // numbers of modules, from 1
constexpr uint32_t kSizes[kModules] = {0, 16, 9, 15, 7, 16, 7};      // functions of each, number 0 included, which none has
constexpr uint32_t kMost = 16, kRangePush = 9, kRangePop = 11;       // of the module core: text; nothing

struct Callbacks {
  size_t bytes;
  int (*functions_of)(uint32_t module, Function ***table, unsigned *size);
};
struct Version {
  size_t bytes;
  uint32_t version, reserved;
  void (*set_version)(uint32_t version);
};

Function functions[kModules][kMost];
Function *places[kModules][kMost + 1];  // null at number 0 and behind the last

int functions_of(uint32_t module, Function ***table, unsigned *size) {
  if (module == 0 || module >= kModules) return 0;
  if (size != nullptr) *size = kSizes[module];
  if (table != nullptr) *table = places[module];
  return 1;
}

void set_version(uint32_t version) { (void)version; }

const void *table_of(uint32_t number) {
  static const Callbacks callbacks = {sizeof callbacks, functions_of};
  static const Version version = {sizeof version, 3, 0, set_version};
  return number == kCallbacks ? static_cast<const void *>(&callbacks) : number == kVersion ? &version : nullptr;
}

void load(const char *path) {
  using Initialize = int (*)(const void *(*table_of)(uint32_t number));
  for (uint32_t module = kCore; module < kModules; ++module)
    for (uint32_t number = 1; number < kSizes[module]; ++number) places[module][number] = &functions[module][number];
  std::string why;
  void *const library = open_library(path, RTLD_LAZY, &why);
  if (library == nullptr) return log(LogLevel::kWarn, "NVTX_INJECTION64_PATH: %s", why.c_str());
  const auto initialize = reinterpret_cast<Initialize>(dlsym(library, "InitializeInjectionNvtx2"));
  if (initialize == nullptr || initialize(table_of) == 0) {
    log(LogLevel::kWarn, "NVTX_INJECTION64_PATH: %s takes no ranges of NVTX", printable(path).c_str());
    dlclose(library);
    return;
  }
  if (functions[kCore][kRangePush] == nullptr || functions[kCore][kRangePop] == nullptr) return;  // it wants others
  push_range.store(reinterpret_cast<int (*)(const char *)>(functions[kCore][kRangePush]), std::memory_order_release);
}

}  // namespace
}  // namespace nvtx

void offer_ranges() {
  static std::once_flag once;
  const char *const path = read_path("NVTX_INJECTION64_PATH");
  if (path != nullptr) std::call_once(once, nvtx::load, path);
}

void CallRange::begin(const Call &call, size_t calls) noexcept {
  try {
    const std::string text = calls == 1 ? describe_call(call.packed_call, call.count) : format("group of %zu calls", calls);
    push_range.load(std::memory_order_acquire)(("collc: " + text).c_str());
    open_ = true;
  } catch (const std::exception &error) {
    log(LogLevel::kWarn, "NVTX: %s", error.what());
  }
}

void CallRange::end() noexcept { reinterpret_cast<int (*)()>(nvtx::functions[nvtx::kCore][nvtx::kRangePop])(); }

}  // namespace collc
