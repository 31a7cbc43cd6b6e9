#include "cuda/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace collc::cuda {
namespace {

using Handle = void *;
struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, numbers[2];
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68, "as nvmlPciInfo_t");

constexpr int kToGpu = 0, kToSwitch = 2;  // nvmlIntNvLinkDeviceType_t

// X(member, symbol, arguments)
#define COLLC_NVML(X)                                                                \
  X(init, nvmlInit_v2, ())                                                           \
  X(by_bus, nvmlDeviceGetHandleByPciBusId_v2, (const char *, Handle *))              \
  X(link_state, nvmlDeviceGetNvLinkState, (Handle, unsigned, int *))                 \
  X(link_remote, nvmlDeviceGetNvLinkRemotePciInfo_v2, (Handle, unsigned, PciInfo *)) \
  X(link_type, nvmlDeviceGetNvLinkRemoteDeviceType, (Handle, unsigned, int *))       \
  X(lanes, nvmlDeviceGetCurrPcieLinkWidth, (Handle, unsigned *))                     \
  X(ancestor, nvmlDeviceGetTopologyCommonAncestor, (Handle, Handle, int *))

struct Nvml {
#define COLLC_NVML_MEMBER(member, symbol, arguments) int(*member) arguments = nullptr;
  COLLC_NVML(COLLC_NVML_MEMBER)
#undef COLLC_NVML_MEMBER
  bool works = false;
};

// Loaded once, for the life of the process.
const Nvml &nvml() {
  static Nvml found;
  static std::once_flag once;
  std::call_once(once, [] {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
#define COLLC_FIND(member, symbol, arguments) found.member = reinterpret_cast<int(*) arguments>(dlsym(library, #symbol));
    COLLC_NVML(COLLC_FIND)
#undef COLLC_FIND
    // Drivers before 470 do not know the type of the device at the other end.
    if (found.init == nullptr || found.by_bus == nullptr || found.link_state == nullptr || found.link_remote == nullptr) return;
    found.works = found.init() == 0;
  });
  return found;
}

// Returns domain, bus and device in one word, with a 1 so that it is never 0; 0 for a text that is no bus id.
uint64_t pack(const char *text) {
  unsigned domain = 0, bus = 0, device = 0;
  if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3 || bus > 0xff || device > 0xff) return 0;
  return uint64_t{domain} << 32 | bus << 16 | device << 8 | 1;
}

// Virtual machines hide the other end; so do containers, of GPUs that they do not have.
bool is_hidden(const PciInfo &remote) { return remote.domain >= 0xfffffff || pack(remote.bus_id) == 0; }

// Returns the packed PCI bus id of the GPU at the far end of an active NVLink; kIntoSwitch for a switch, a hidden or unreadable
// remote, or one of unknown type that is no GPU here; 0 for a device of any other type (a CPU).
uint64_t other_end(Handle gpu, unsigned link) {
  PciInfo remote = {};
  int type = -1;
  if (nvml().link_type != nullptr && nvml().link_type(gpu, link, &type) != 0) type = -1;
  const bool told = nvml().link_remote(gpu, link, &remote) == 0;
  remote.bus_id[sizeof remote.bus_id - 1] = '\0';
  if (type == kToSwitch || !told || is_hidden(remote)) return kIntoSwitch;
  if (type == kToGpu) return pack(remote.bus_id);
  if (type != -1 && type != 255) return 0;  // a processor, over NVLink
  Handle handle = nullptr;
  return nvml().by_bus(remote.bus_id, &handle) == 0 ? pack(remote.bus_id) : kIntoSwitch;
}

// Errors of NVML where there is no such link.
constexpr int kNoSuchLink = 2, kNoLinks = 3;

bool open_gpu(DeviceNumber device, Handle *gpu) {
  char bus[32] = "";
  return nvml().works && driver().device_bus(bus, sizeof bus, device) == 0 && nvml().by_bus(bus, gpu) == 0;
}

Handle handle_of(uint64_t bus) {
  const std::string text = format("%08x:%02x:%02x.0", static_cast<unsigned>(bus >> 32), static_cast<unsigned>(bus >> 16 & 0xff),
                                  static_cast<unsigned>(bus >> 8 & 0xff));
  Handle handle = nullptr;
  return bus != 0 && nvml().by_bus(text.c_str(), &handle) == 0 ? handle : nullptr;
}

}  // namespace

std::vector<uint8_t> find_paths(const GpuPlace &mine, const std::vector<GpuPlace> &places) {
  std::vector<uint8_t> found(places.size(), kUnknownPath);
  const Handle gpu = nvml().works && nvml().ancestor != nullptr ? handle_of(mine.bus) : nullptr;
  for (size_t i = 0; i < places.size() && gpu != nullptr; ++i) {
    int level = 0;
    const Handle other = places[i].bus == mine.bus ? nullptr : handle_of(places[i].bus);
    if (other != nullptr && nvml().ancestor(gpu, other, &level) == 0 && level > 0 && level < kUnknownPath)
      found[i] = static_cast<uint8_t>(level);
  }
  return found;
}

GpuPlace find_place(DeviceNumber device) {
  GpuPlace place = {};
  char bus[32] = "";
  if (driver().device_bus(bus, sizeof bus, device) != 0) return place;
  place.bus = pack(bus);
  Handle gpu = nullptr;
  if (place.bus == 0 || !nvml().works || nvml().by_bus(bus, &gpu) != 0) return place;
  for (unsigned link = 0; link < kMaxGpuLinks; ++link) {
    int up = 0;
    if (nvml().link_state(gpu, link, &up) != 0) continue;
    place.has_links = 1;
    if (up == 0) continue;
    if (const uint64_t end = other_end(gpu, link); end != 0) place.links[place.nlinks++] = end;
  }
  return place;
}

bool find_links(DeviceNumber device, const std::vector<uint64_t> &buses, std::vector<uint32_t> *found) {
  found->clear();
  Handle gpu = nullptr;
  if (!open_gpu(device, &gpu)) return false;
  for (unsigned link = 0; link < kMaxGpuLinks; ++link) {
    int up = 0;
    const int outcome = nvml().link_state(gpu, link, &up);
    if (outcome == 0 && up != 0) {
      const uint64_t end = other_end(gpu, link);
      if (end == kIntoSwitch || std::find(buses.begin(), buses.end(), end) != buses.end()) found->push_back(link);
    }
    if (outcome != 0 && outcome != kNoSuchLink && outcome != kNoLinks) return false;
  }
  return true;
}

bool count_links(DeviceNumber device, const std::vector<uint32_t> &links, uint32_t *count) {
  *count = 0;
  Handle gpu = nullptr;
  if (!open_gpu(device, &gpu)) return false;
  for (const uint32_t link : links) {
    int up = 0;
    if (nvml().link_state(gpu, link, &up) != 0) return false;
    *count += up != 0 ? 1 : 0;
  }
  return true;
}

bool count_lanes(DeviceNumber device, uint32_t *lanes) {
  Handle gpu = nullptr;
  unsigned found = 0;
  if (!open_gpu(device, &gpu) || nvml().lanes == nullptr || nvml().lanes(gpu, &found) != 0) return false;
  *lanes = found;
  return true;
}

}  // namespace collc::cuda
