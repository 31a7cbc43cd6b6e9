#include "cuda/driver.h"

#include <dlfcn.h>

#include <mutex>

namespace collc::cuda {
namespace {

Driver loaded_driver;

Status open_driver() {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char *why = dlerror();
    return fail(ncclUnhandledCudaError, "this library needs the NVIDIA driver, which is missing here: %s",
                why == nullptr ? "libcuda.so.1" : why);
  }
#define COLLC_FIND(member, symbol, arguments)                                            \
  loaded_driver.member = reinterpret_cast<Result(*) arguments>(dlsym(library, #symbol)); \
  if (loaded_driver.member == nullptr)                                                   \
    return fail(ncclUnhandledCudaError, "the NVIDIA driver of this machine is too old: it has no %s (525 has)", #symbol);
  COLLC_DRIVER(COLLC_FIND)
#undef COLLC_FIND
#define COLLC_FIND(member, symbol, arguments) \
  loaded_driver.member = reinterpret_cast<Result(*) arguments>(dlsym(library, #symbol));
  COLLC_NEW_DRIVER(COLLC_FIND)
#undef COLLC_FIND
  COLLC_RETURN_IF_FAILED(check(loaded_driver.init(0), "starting the NVIDIA driver"));
  int count = 0;
  COLLC_RETURN_IF_FAILED(check(loaded_driver.device_count(&count), "counting GPUs"));
  if (count == 0) return fail(ncclUnhandledCudaError, "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
  return {};
}

}  // namespace

Status load_driver(const Driver **driver) {
  static std::once_flag once;
  static Status *const outcome = new Status;  // outlives every thread
  std::call_once(once, [] { *outcome = open_driver(); });
  *driver = &loaded_driver;
  return *outcome;
}

const Driver &driver() { return loaded_driver; }

Status check(Result result, const char *what) {
  if (result == 0) return {};
  const char *text = nullptr;
  if (loaded_driver.error_text(result, &text) != 0 || text == nullptr) text = "no description";
  return fail(ncclUnhandledCudaError, "%s failed: %s (CUDA error %d)", what, text, result);
}

}  // namespace collc::cuda
