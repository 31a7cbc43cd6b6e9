#include "wire/plugin_net.h"

#include <climits>
#include <type_traits>

#include "base/log.h"
#include "wire/cards.h"

namespace collc {
namespace {

// What all versions tell of a device.
struct Device {
  std::string name, pci_path;
  double mbits = 0;
  int pointers = 0, type = 0;
  uint64_t most_bytes = INT_MAX;
};

template <class Properties>
nccl_net::Result read_device(const nccl_net::Table &table, int number, Device *device) {
  Properties properties = {};
  const nccl_net::Result result = table.properties(number, &properties);
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

nccl_net::Result read_device(const NetPlugin &plugin, int number, Device *device) {
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

Status PluginNet::open(NetPlugin &plugin, const WirePlace &place, std::shared_ptr<PluginNet> *made) {
  const ForeignTurn turn;
  COLLC_RETURN_IF_FAILED(ForeignTurn::check("plugin"));
  std::shared_ptr<PluginNet> net(new PluginNet(plugin));
  if (const Status status = net->choose_device(place); !status.ok())
    return fail(status.code(), "engine plugin: %s", status.text().c_str());
  *made = std::move(net);
  return {};
}

// The nearest one to a GPU of a rank here, of these the fastest, of these the first.
Status PluginNet::choose_device(const WirePlace &place) {
  const int count = plugin_.ndevices();
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
    takes_gpus_ = (device.pointers & nccl_net::kGpuMemory) != 0 && table().flush != nullptr;
    device_name_ = format("device %s, %d of %d, %g Gbit/s", device.name.c_str(), number + 1, count, mbits_ / 1000);
  }
  if (!device_name_.empty()) return {};
  return fail(ncclSystemError, "%s has %d devices, and none that sends from host memory", plugin_.where().c_str(), count);
}

Status PluginNet::listen(void *handle, void **listening) const {
  *listening = nullptr;
  const nccl_net::Result result =
      plugin_.version() >= 11
          ? reinterpret_cast<nccl_net::Listen11>(table().listen)(plugin_.context(), device_, handle, listening)
          : reinterpret_cast<nccl_net::Listen8>(table().listen)(device_, handle, listening);
  if (result == 0 && *listening == nullptr) return check("listen", ncclInternalError);
  return check("listen", result);
}

Status PluginNet::connect(void *handle, void **comm) const {
  void *on_device = nullptr;  // nothing of it runs on a GPU
  const nccl_net::Any call = table().connect;
  nccl_net::Result result = 0;
  if (plugin_.version() >= 11)
    result = reinterpret_cast<nccl_net::Connect11>(call)(plugin_.context(), device_, handle, comm, &on_device);
  else if (plugin_.version() == 10)
    result = reinterpret_cast<nccl_net::Connect10>(call)(device_, plugin_.config(), handle, comm, &on_device);
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
  nccl_net::Result result = 0;
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
  nccl_net::Result result = 0;
  if (plugin_.version() >= 10)
    result = reinterpret_cast<nccl_net::Receive10>(call)(comm, 1, &data, &bytes, &tag, &memory, &event, request);
  else if (plugin_.version() == 9)
    result = reinterpret_cast<nccl_net::Receive9>(call)(comm, 1, &data, &bytes, &tag, &memory, request);
  else
    result = reinterpret_cast<nccl_net::Receive8>(call)(comm, 1, &data, &few, &tag, &memory, request);
  return check("irecv", result);
}

Status PluginNet::flush(void *comm, void *data, size_t bytes, void *memory, void **request) const {
  *request = nullptr;
  if (table().flush == nullptr) return check("iflush", ncclInvalidUsage);
  int few = static_cast<int>(bytes);
  return check("iflush", table().flush(comm, 1, &data, &few, &memory, request));
}

}  // namespace collc
