#include "wire/nics.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace collc {
namespace {

constexpr uint32_t kOtherBridge = 100, kOtherMemory = 200;

// Returns the number in a file of sysfs; `otherwise` if there is none.
long read_long(const std::string &path, long otherwise) {
  FILE *const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return otherwise;
  long value = otherwise;
  if (std::fscanf(file, "%ld", &value) != 1) value = otherwise;
  std::fclose(file);
  return value;
}

// Returns whether the interface with this folder in sysfs has a link. Drivers that do not know report "unknown", which counts
// as up.
bool is_up(const std::string &folder) {
  FILE *const file = std::fopen((folder + "/operstate").c_str(), "re");
  if (file == nullptr) return false;
  char state[16] = "";
  const bool read = std::fscanf(file, "%15s", state) == 1;
  std::fclose(file);
  return read && (std::strcmp(state, "up") == 0 || std::strcmp(state, "unknown") == 0);
}

// Returns the absolute target of a symbolic link; "" if it leads nowhere.
std::string follow(const std::string &link) {
  char path[PATH_MAX];
  return realpath(link.c_str(), path) == nullptr ? "" : path;
}

// Returns the path from a host bridge ("pci0000:3a") down to a device, by folder; empty if it is not a PCIe device.
std::vector<std::string> pcie_path(const std::string &path) {
  std::vector<std::string> steps;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string step = path.substr(at, end - at);
    const bool bridge = step.compare(0, 3, "pci") == 0 && step.find(':') != std::string::npos;
    if (bridge || !steps.empty()) steps.push_back(step);
    at = end + 1;
  }
  return steps;
}

uint32_t distance(const std::string &one, const std::string &other) {
  const std::vector<std::string> a = pcie_path(one), b = pcie_path(other);
  if (a.empty() || b.empty()) return kUnknownDistance;
  size_t common = 0;
  while (common < std::min(a.size(), b.size()) && a[common] == b[common]) ++common;
  const auto steps = static_cast<uint32_t>(std::min<size_t>(a.size() + b.size() - 2 * common, kOtherBridge - 1));
  if (common > 0) return steps;
  const long memory = read_long(one + "/numa_node", -1);
  return steps + (memory >= 0 && memory == read_long(other + "/numa_node", -1) ? kOtherBridge : kOtherMemory);
}

// Returns a bus id in the form of sysfs. `last`: the number of the function, plus 1.
std::string bus_text(uint64_t bus, uint64_t last) {
  return format("%04x:%02x:%02x.%u", static_cast<unsigned>(bus >> 32), static_cast<unsigned>(bus >> 16 & 0xff),
                static_cast<unsigned>(bus >> 8 & 0xff), static_cast<unsigned>(last - 1));
}

}  // namespace

std::vector<std::string> list_folder(const std::string &folder) {
  std::vector<std::string> names;
  DIR *const open = opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent *entry = readdir(open))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<RdmaInterface> find_rdma_interfaces(const std::string &sys) {
  std::vector<RdmaInterface> interfaces;
  for (const std::string &device : list_folder(sys + "/class/infiniband")) {
    const std::string folder = sys + "/class/infiniband/" + device + "/device/net";
    for (const std::string &interface : list_folder(folder)) {
      const long port = read_long(folder + "/" + interface + "/dev_port", 0) + 1;
      const std::string bond = follow(folder + "/" + interface + "/master");
      interfaces.push_back({device + ":" + std::to_string(port), bond.empty() ? interface : bond.substr(bond.rfind('/') + 1)});
    }
  }
  return interfaces;
}

std::vector<std::string> find_interfaces(const Card &card, const std::string &sys) {
  const std::string net = sys + "/class/net/";
  const auto bond_or_self = [&net](const std::string &interface) {
    const std::string bond = follow(net + interface + "/master");
    return bond.empty() ? interface : bond.substr(bond.rfind('/') + 1);
  };
  char name[2 * sizeof card.name + 1] = "";
  std::memcpy(name, &card.name, sizeof card.name);
  std::memcpy(name + sizeof card.name, &card.rest, sizeof card.rest);
  std::vector<std::string> with_bus_id;
  if (card.bus != 0)
    for (const std::string &interface : list_folder(net)) {
      const std::string device = follow(net + interface + "/device");
      if (device.substr(device.rfind('/') + 1) != bus_text(card.bus, card.bus & 0xff)) continue;
      if (interface == name) return {bond_or_self(interface)};
      with_bus_id.push_back(interface);
    }
  const auto order = [&net](const std::string &interface) {
    return std::make_pair(!is_up(net + interface), read_long(net + interface + "/dev_port", 0));
  };
  std::stable_sort(with_bus_id.begin(), with_bus_id.end(),
                   [&order](const std::string &a, const std::string &b) { return order(a) < order(b); });
  std::vector<std::string> interfaces;
  for (const std::string &interface : with_bus_id)
    if (const std::string interface_or_bond = bond_or_self(interface);
        std::find(interfaces.begin(), interfaces.end(), interface_or_bond) == interfaces.end())
      interfaces.push_back(interface_or_bond);
  if (!interfaces.empty() || name[0] == '\0') return interfaces;
  if (!follow(net + name).empty()) return {bond_or_self(name)};
  for (const RdmaInterface &rdma : find_rdma_interfaces(sys))
    if (rdma.port.substr(0, rdma.port.find(':')) == name) return {rdma.interface};
  return {};
}

uint32_t distance_from_gpus(const std::string &interface, const std::vector<uint64_t> &gpus, const std::string &sys) {
  uint32_t min_distance = kUnknownDistance;
  const std::string nic = follow(sys + "/class/net/" + interface + "/device");
  for (const uint64_t bus : gpus) {
    const std::string gpu = follow(sys + "/bus/pci/devices/" + bus_text(bus, 1));
    min_distance = std::min(min_distance, distance(gpu, nic));
  }
  return min_distance;
}

}  // namespace collc
