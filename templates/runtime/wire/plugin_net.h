// What a communicator has of a network plugin made for NCCL: the device that it uses.
#pragma once
#include <memory>
#include <string>

#include "wire/net_plugin.h"
#include "wire/wire.h"

namespace collc {

// For whoever has the ForeignTurn, as is every call.
class PluginNet {
 public:
  static Status open(NetPlugin &plugin, const WirePlace &place, std::shared_ptr<PluginNet> *made);

  NetPlugin &plugin() const { return plugin_; }
  const nccl_net::Table &table() const { return plugin_.table(); }
  // "device eth0, 1 of 2, 100 Gbit/s".
  const std::string &device() const { return device_name_; }
  double mbits() const { return mbits_; }
  uint64_t most_bytes() const { return most_bytes_; }
  // Whether its messages may lie in memory of GPUs.
  bool takes_gpus() const { return takes_gpus_; }

  Status listen(void *handle, void **listening) const;
  // Null where it is to be called once more.
  Status connect(void *handle, void **comm) const;
  Status accept(void *listening, void **comm) const;
  Status send(void *comm, void *data, size_t bytes, void *memory, void **request) const;
  Status receive(void *comm, void *data, size_t bytes, void *memory, void **request) const;
  // What was received into memory of a GPU is seen there when the request has ended; null: it is already.
  Status flush(void *comm, void *data, size_t bytes, void *memory, void **request) const;
  // As that of the plugin.
  Status check(const char *what, nccl_net::Result result) const { return plugin_.check(what, result); }

 private:
  explicit PluginNet(NetPlugin &plugin) : plugin_(plugin) {}
  Status choose_device(const WirePlace &place);

  NetPlugin &plugin_;
  int device_ = 0;
  std::string device_name_;
  double mbits_ = 0;
  uint64_t most_bytes_ = 0;
  bool takes_gpus_ = false;
};

}  // namespace collc
