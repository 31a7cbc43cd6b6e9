// A network plugin made for NCCL: its library, which a process opens and starts once.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "wire/foreign.h"
#include "wire/plugin_abi.h"

namespace collc {

class NetPlugin {
 public:
  // `named`: a name or path, or a list of these; "": those of NCCL_NET_PLUGIN, else libnccl-net.so. The first that starts and has
  // devices; it stays as long as the process does.
  static Status load(const std::string &named, NetPlugin **found);
  NetPlugin(const nccl_net::Table *table, int version, const std::string &path);

  const nccl_net::Table &table() const { return *table_; }
  int version() const { return version_; }
  // What it calls itself.
  const std::string &name() const { return name_; }
  // "AWS Libfabric (version 10, /opt/lib/libnccl-net.so)".
  const std::string &where() const { return where_; }
  int ndevices() const { return ndevices_; }
  // Of all communicators, since version 11. Some plugins cannot be started again after their last one was finalized.
  void *context() const { return context_; }
  nccl_net::Config *config() { return &config_; }
  // Nothing for a success; `what`: the function's name in NCCL, a literal.
  Status check(const char *what, nccl_net::Result result);
  // It has done something, maybe for the first time.
  void note_use(const char *what);

 private:
  Status start();

  const nccl_net::Table *table_;
  int version_;
  std::string name_, where_;
  nccl_net::Config config_ = {nccl_net::kAnyTrafficClass};
  void *context_ = nullptr;
  bool begun_ = false;
  int ndevices_ = 0;  // none: it has not started
  std::vector<const char *> used_;  // what it has done
};

}  // namespace collc
