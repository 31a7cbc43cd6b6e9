// A network plugin made for NCCL: its library, which a process opens once, and what one communicator has of it.
#pragma once
#include <memory>
#include <string>

#include "wire/foreign.h"
#include "wire/plugin_abi.h"
#include "wire/wire.h"

namespace collc {

class NetPlugin {
 public:
  // `named`: a name or path; "": those of NCCL_NET_PLUGIN, else libnccl-net.so. Never closed again.
  static Status load(const std::string &named, NetPlugin **found);
  NetPlugin(const nccl_net::Table *table, int version, std::string path);

  const nccl_net::Table &table() const { return *table_; }
  int version() const { return version_; }
  // What it calls itself.
  const std::string &name() const { return name_; }
  // "AWS Libfabric (version 10, /opt/lib/libnccl-net.so)".
  const std::string &where() const { return where_; }
  // For versions before 11, which are prepared once in a process.
  Status prepare();

 private:
  const nccl_net::Table *table_;
  int version_;
  std::string name_, where_;
  bool prepared_ = false;
};

// What a communicator has of a plugin: the device that it uses. For whoever has the ForeignTurn, as is every call.
class PluginNet {
 public:
  // `communicator`: a number that its machines have in common.
  static Status open(NetPlugin &plugin, uint64_t communicator, const WirePlace &place, std::shared_ptr<PluginNet> *made);
  ~PluginNet();
  PluginNet(const PluginNet &) = delete;
  PluginNet &operator=(const PluginNet &) = delete;

  const NetPlugin &plugin() const { return plugin_; }
  const nccl_net::Table &table() const { return plugin_.table(); }
  // "device eth0, 1 of 2, 100 Gbit/s".
  const std::string &device() const { return device_name_; }
  double mbits() const { return mbits_; }
  uint64_t most_bytes() const { return most_bytes_; }

  Status listen(void *handle, void **listening) const;
  // Null where it is to be called once more.
  Status connect(void *handle, void **comm);
  Status accept(void *listening, void **comm) const;
  Status send(void *comm, void *data, size_t bytes, void *memory, void **request) const;
  Status receive(void *comm, void *data, size_t bytes, void *memory, void **request) const;
  // Nothing for a success; `what`: the function's name in NCCL.
  Status check(const char *what, nccl_net::Result result) const;

 private:
  explicit PluginNet(NetPlugin &plugin) : plugin_(plugin) {}
  Status begin(uint64_t communicator);
  Status choose_device(const WirePlace &place);

  NetPlugin &plugin_;
  void *context_ = nullptr;
  nccl_net::Config config_ = {nccl_net::kAnyTrafficClass};
  bool begun_ = false;
  int device_ = 0;
  std::string device_name_;
  double mbits_ = 0;
  uint64_t most_bytes_ = 0;
};

}  // namespace collc
