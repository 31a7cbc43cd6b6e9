#include "cuda/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/environment.h"

extern "C" const unsigned char collc_fatbin[];
extern "C" __attribute__((weak)) const char collc_counters[];  // there if the kernels count
extern "C" __attribute__((weak)) const char collc_direct[];    // there if ranks read each other's buffers
extern "C" __attribute__((weak)) const char collc_in_switch[];  // there if some run programs inside a switch
extern "C" __attribute__((weak)) const uint32_t collc_variants[];  // there if some kernels have written-out steps
extern "C" const char collc_device_code[];  // what is in it: "sm_80, sm_90 (driver 580.65.06 or newer)"

namespace collc::cuda {
namespace {

#define COLLC_NAME(name, type, protocol) "collc_" #name,
const char *const kNames[] = {COLLC_SIMPLE_KERNELS(COLLC_NAME) COLLC_LL_KERNELS(COLLC_NAME) COLLC_LL128_KERNELS(COLLC_NAME)};
const char *const kDirectNames[] = {COLLC_DIRECT_KERNELS(COLLC_NAME)};
const char *const kSwitchNames[] = {COLLC_SWITCH_KERNELS(COLLC_NAME)};
#undef COLLC_NAME
#define COLLC_NAME(name, type, protocol) "collc_written_" #name,
const char *const kWrittenNames[] = {COLLC_SIMPLE_KERNELS(COLLC_NAME) COLLC_LL_KERNELS(COLLC_NAME)
                                         COLLC_LL128_KERNELS(COLLC_NAME)};
#undef COLLC_NAME
static_assert(sizeof kNames / sizeof *kNames == kKernelTypes * kProtocols, "one kernel per protocol and type");

std::mutex devices_mutex;
// One entry per context. Entries of destroyed contexts stay, because ranks and deferred frees point to them.
std::vector<std::unique_ptr<Device>> &devices() {
  static auto *const all = new std::vector<std::unique_ptr<Device>>;  // outlives every thread
  return *all;
}

// Returns the device that cudaSetDevice has chosen, for threads without a current context: before CUDA 12 it opened none. 0 if
// the process has no CUDA runtime, or it is linked statically.
int chosen_in_runtime() {
  const auto ask = reinterpret_cast<int (*)(int *)>(dlsym(RTLD_DEFAULT, "cudaGetDevice"));
  int number = 0;
  return ask != nullptr && ask(&number) == 0 ? number : 0;
}

constexpr uint32_t kSharedWithoutAsking = 48 << 10;
constexpr int kSwitchCapability = 90;  // multimem instructions

Status open_device(int number, Device *device) {
  const Driver &cu = driver();
  COLLC_RETURN_IF_FAILED(check(cu.device_get(&device->number, number), "opening the GPU"));
  COLLC_RETURN_IF_FAILED(check(cu.device_uuid(&device->uuid, device->number), "asking the GPU for its name"));
  int cooperative = 0;
  COLLC_RETURN_IF_FAILED(
      check(cu.device_attribute(&device->multiprocessors, kMultiprocessors, device->number), "examining the GPU"));
  COLLC_RETURN_IF_FAILED(check(cu.device_attribute(&cooperative, kCooperativeLaunch, device->number), "examining the GPU"));
  device->cooperative = cooperative != 0;
  int major = 0, minor = 0;
  COLLC_RETURN_IF_FAILED(check(cu.device_attribute(&major, kCapabilityMajor, device->number), "examining the GPU"));
  COLLC_RETURN_IF_FAILED(check(cu.device_attribute(&minor, kCapabilityMinor, device->number), "examining the GPU"));
  device->capability = 10 * major + minor;
  COLLC_RETURN_IF_FAILED(check(cu.context_current(&device->context), "finding the GPU's context"));
  COLLC_RETURN_IF_FAILED(check(cu.context_id(device->context, &device->context_id), "finding the GPU's context"));
  Module module = nullptr;
  const Result loaded = cu.module_load(&module, collc_fatbin);
  if (loaded == kInvalidImage || loaded == kNoBinaryForGpu || loaded == kInvalidPtx || loaded == kUnsupportedPtx) {
    int version = 0;
    cu.driver_version(&version);
    return fail(ncclUnhandledCudaError, "GPU %d (sm_%d%d) or its driver (for CUDA %d.%d) cannot run this library's kernels: %s",
                number, major, minor, version / 1000, version % 1000 / 10, collc_device_code);
  }
  COLLC_RETURN_IF_FAILED(check(loaded, "loading the kernels"));
  device->kernels.resize(kKernelTypes * (device->has_ll128() ? kProtocols : kLL128));
  for (size_t k = 0; k < device->kernels.size(); ++k) {
    COLLC_RETURN_IF_FAILED(check(cu.module_function(&device->kernels[k], module, kNames[k]), kNames[k]));
    // Before CUDA 12.4 finding a kernel loads it.
    if (cu.function_load != nullptr) COLLC_RETURN_IF_FAILED(check(cu.function_load(device->kernels[k]), kNames[k]));
  }
  // A library has only those that its programs need.
  if (written_variants() != nullptr) device->written.resize(device->kernels.size());
  for (size_t k = 0; k < device->written.size(); ++k) {
    if (cu.module_function(&device->written[k], module, kWrittenNames[k]) != 0)
      device->written[k] = nullptr;
    else if (cu.function_load != nullptr)
      COLLC_RETURN_IF_FAILED(check(cu.function_load(device->written[k]), kWrittenNames[k]));
  }
  if (kernels_read_buffers()) device->direct.resize(kKernelTypes);
  for (size_t k = 0; k < device->direct.size(); ++k) {
    COLLC_RETURN_IF_FAILED(check(cu.module_function(&device->direct[k], module, kDirectNames[k]), kDirectNames[k]));
    if (cu.function_load != nullptr) COLLC_RETURN_IF_FAILED(check(cu.function_load(device->direct[k]), kDirectNames[k]));
  }
  // A question for a kernel that is not there is an error of the program under compute-sanitizer.
  if (collc_in_switch != nullptr && device->capability >= kSwitchCapability) device->in_switch.resize(kKernelTypes);
  for (size_t k = 0; k < device->in_switch.size(); ++k) {
    COLLC_RETURN_IF_FAILED(check(cu.module_function(&device->in_switch[k], module, kSwitchNames[k]), kSwitchNames[k]));
    if (cu.function_load != nullptr) COLLC_RETURN_IF_FAILED(check(cu.function_load(device->in_switch[k]), kSwitchNames[k]));
  }
  COLLC_RETURN_IF_FAILED(check(cu.module_function(&device->exchange, module, "collc_exchange"), "collc_exchange"));
  if (cu.function_load != nullptr) COLLC_RETURN_IF_FAILED(check(cu.function_load(device->exchange), "collc_exchange"));
  return {};
}

}  // namespace

std::vector<Function> Device::collectives() const {
  std::vector<Function> all = kernels;
  all.insert(all.end(), direct.begin(), direct.end());
  for (Function kernel : written)
    if (kernel != nullptr) all.push_back(kernel);
  return all;
}

uint32_t Device::resident_blocks(uint32_t threads, uint32_t shared_bytes) const {
  int least = 1 << 20;
  for (Function kernel : collectives()) {
    int blocks = 0;
    if (driver().occupancy(&blocks, kernel, static_cast<int>(threads), shared_bytes) != 0) return 0;
    least = std::min(least, blocks);
  }
  return static_cast<uint32_t>(least * multiprocessors);
}

bool kernels_count() { return collc_counters != nullptr; }

bool kernels_read_buffers() { return collc_direct != nullptr; }

const uint32_t *written_variants() {
  const char *const wish = read_text("COLLC_SPECIALISED");
  return wish != nullptr && std::strcmp(wish, "0") == 0 ? nullptr : collc_variants;
}

Status make_current(int number) {
  const Driver *cu = nullptr;
  COLLC_RETURN_IF_FAILED(load_driver(&cu));
  DeviceNumber device = 0;
  COLLC_RETURN_IF_FAILED(check(cu->device_get(&device, number), "choosing the GPU"));
  // Each time: cudaDeviceReset ends the context however often it was retained. Nothing here releases it.
  Context context = nullptr;
  COLLC_RETURN_IF_FAILED(check(cu->primary_retain(&context, device), "opening the GPU"));
  return check(cu->context_set(context), "choosing the GPU");
}

Status current_number(int *number) {
  const Driver *cu = nullptr;
  COLLC_RETURN_IF_FAILED(load_driver(&cu));
  Context context = nullptr;
  COLLC_RETURN_IF_FAILED(check(cu->context_current(&context), "asking for the current GPU"));
  if (context == nullptr) {
    *number = chosen_in_runtime();
    return {};
  }
  DeviceNumber device = 0;
  COLLC_RETURN_IF_FAILED(check(cu->context_device(&device), "asking for the current GPU"));
  *number = device;
  return {};
}

Status current_device(Device **device) {
  int number = 0;
  Context context = nullptr;
  COLLC_RETURN_IF_FAILED(current_number(&number));
  COLLC_RETURN_IF_FAILED(check(driver().context_current(&context), "finding the GPU's context"));
  const std::lock_guard<std::mutex> lock(devices_mutex);
  for (const auto &known : devices()) {
    if (known->context != context || !is_alive(*known)) continue;
    *device = known.get();
    return {};
  }
  auto opened = std::make_unique<Device>();
  COLLC_RETURN_IF_FAILED(open_device(number, opened.get()));
  *device = opened.get();
  devices().push_back(std::move(opened));
  return {};
}

bool is_alive(const Device &device) {
  unsigned long long id = 0;
  return driver().context_id(device.context, &id) == 0 && id == device.context_id;
}

bool find_visible(const Uuid &uuid, DeviceNumber *number) {
  const Driver &cu = driver();
  int devices = 0;
  if (cu.device_count(&devices) != 0) return false;
  for (int d = 0; d < devices; ++d) {
    Uuid found = {};
    if (cu.device_get(number, d) != 0 || cu.device_uuid(&found, *number) != 0) continue;
    if (std::memcmp(&uuid, &found, sizeof found) == 0) return true;
  }
  return false;
}

Status allow_shared(const Device &device, uint32_t bytes) {
  if (bytes <= kSharedWithoutAsking) return {};
  for (Function kernel : device.collectives())
    COLLC_RETURN_IF_FAILED(check(driver().function_set(kernel, kMaxDynamicShared, static_cast<int>(bytes)),
                                 "reserving shared memory for the plan's shares"));
  return {};
}

}  // namespace collc::cuda
