// A libnvidia-ml.so.1 for tests: the NVLinks of the machine of mock_driver.cpp, whatever CUDA_VISIBLE_DEVICES hides.
// MOCK_LINKS lists them: "0-1,0-1" are two between devices 0 and 1, "2-s" leads from device 2 into a switch, "2-h" to an end
// that a virtual machine hides. MOCK_DOWN lists links that are down. Without MOCK_LINKS the GPUs have no NVLinks.
// MOCK_PATHS lists the common ancestor of pairs on PCIe, "0-1:10,2-3:30"; other pairs have 40. Without it, the query is refused.
// MOCK_LANES lists the current PCIe lanes of devices, "1:8"; other devices have 16. Without it, the query is refused.
// With MOCK_NVML_STANDS=FILE a query of a link's state never returns; with MOCK_NVML_FAILS=FILE it reports a lost GPU. Each query
// adds a dot to the file. MOCK_NVML_AT limits both to one device.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define MOCK extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr int kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kGpuIsLost = 15;
constexpr unsigned kFirstBus = 0x10;

struct Link {
  std::string to;  // a device, "s" or "h"
  bool up;
};

std::vector<std::string> words(const char *variable) {
  const char *text = std::getenv(variable);
  std::vector<std::string> found;
  for (std::string rest = text == nullptr ? "" : text; !rest.empty();) {
    const size_t cut = rest.find(',');
    found.push_back(rest.substr(0, cut));
    rest = cut == std::string::npos ? "" : rest.substr(cut + 1);
  }
  return found;
}

// The links of a device, as its end numbers them.
std::vector<Link> links_of(const std::string &device) {
  std::vector<std::string> down = words("MOCK_DOWN");
  std::vector<Link> found;
  for (const std::string &word : words("MOCK_LINKS")) {
    const std::string a = word.substr(0, word.find('-')), b = word.substr(word.find('-') + 1);
    bool up = true;
    for (size_t i = 0; i < down.size() && up; ++i)
      if (down[i] == word) {
        up = false;
        down.erase(down.begin() + static_cast<long>(i));
      }
    if (a == device) found.push_back({b, up});
    if (b == device) found.push_back({a, up});
  }
  return found;
}

// That it was asked.
void note(const char *file) {
  if (std::FILE *out = std::fopen(file, "a")) {
    std::fputc('.', out);
    std::fclose(out);
  }
}

// Returns true if MOCK_NVML_AT does not exclude this device.
bool is_silent(const std::string &device) {
  const char *at = std::getenv("MOCK_NVML_AT");
  return at == nullptr || device == at;
}

std::string device_of(void *handle) { return std::to_string(reinterpret_cast<size_t>(handle) - 1); }

}  // namespace

struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, numbers[2];
  char bus_id[32];
};

MOCK nvmlInit_v2() { return 0; }
MOCK nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2 || bus < kFirstBus) return kNotFound;
  *handle = reinterpret_cast<void *>(static_cast<size_t>(bus - kFirstBus + 1));
  return 0;
}
MOCK nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *up) {
  if (std::getenv("MOCK_LINKS") == nullptr) return kNotSupported;
  const char *stands = std::getenv("MOCK_NVML_STANDS"), *fails = std::getenv("MOCK_NVML_FAILS");
  if (stands != nullptr && is_silent(device_of(handle)))
    for (note(stands);;) pause();
  if (fails != nullptr && is_silent(device_of(handle))) return note(fails), kGpuIsLost;
  const std::vector<Link> links = links_of(device_of(handle));
  if (link >= links.size()) return kInvalidArgument;
  return *up = links[link].up, 0;
}
MOCK nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, PciInfo *remote) {
  const std::vector<Link> links = links_of(device_of(handle));
  if (link >= links.size()) return kInvalidArgument;
  const std::string &to = links[link].to;
  *remote = {};
  remote->bus = to == "s" ? 0xc0 : kFirstBus + static_cast<unsigned>(std::atoi(to.c_str()));
  if (to == "h") remote->domain = 0xfffffff, remote->bus = 0xff;
  std::snprintf(remote->bus_id, sizeof remote->bus_id, "%08X:%02X:%02X.0", remote->domain, remote->bus, to == "h" ? 0xff : 0);
  return 0;
}
MOCK nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) {
  if (std::getenv("MOCK_OLD_NVML") != nullptr) return kNotSupported;
  const std::vector<Link> links = links_of(device_of(handle));
  if (link >= links.size()) return kInvalidArgument;
  return *type = links[link].to == "s" ? 2 : links[link].to == "h" ? 255 : 0, 0;
}
MOCK nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *lanes) {
  if (std::getenv("MOCK_LANES") == nullptr) return kNotSupported;
  *lanes = 16;
  for (const std::string &word : words("MOCK_LANES"))
    if (word.substr(0, word.find(':')) == device_of(handle))
      *lanes = static_cast<unsigned>(std::atoi(word.c_str() + word.find(':') + 1));
  return 0;
}
MOCK nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level) {
  if (std::getenv("MOCK_PATHS") == nullptr) return kNotSupported;
  *level = 40;
  for (const std::string &word : words("MOCK_PATHS")) {
    const std::string pair = word.substr(0, word.find(':'));
    if (pair == device_of(a) + "-" + device_of(b) || pair == device_of(b) + "-" + device_of(a))
      *level = std::atoi(word.c_str() + pair.size() + 1);
  }
  return 0;
}
