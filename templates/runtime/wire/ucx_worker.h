// UCX's context and worker for one communicator, which its connections over the ucx engine share. After setup only the proxy
// thread uses it, under UcxLock.
#pragma once
#include <memory>
#include <string>

#include "base/bytes.h"
#include "wire/ucx_lock.h"
#include "wire/ucx_api.h"

namespace collc {

class UcxWorker {
 public:
  // `interface`: name of the network interface on which machines meet. `devices`: RDMA ports to use, comma-separated, such as
  // "mlx5_0:1"; "": all. UCX may use only RDMA transports, because over TCP it lets any host that reaches its port write into
  // this process. COLLC_UCX_UNSAFE_TCP allows TCP, for tests on isolated networks.
  static Status make(const std::string &interface, const std::string &devices, std::shared_ptr<UcxWorker> *worker_out);
  ~UcxWorker();
  UcxWorker(const UcxWorker &) = delete;
  UcxWorker &operator=(const UcxWorker &) = delete;

  const ucx::Api &api() const { return api_; }
  void *get() const { return worker_; }
  // Returns the worker's address, in UCX's format, for peers.
  Status address(Bytes *address) const;
  // Returns text for people, such as "RDMA on all devices".
  const std::string &transports() const { return transports_; }
  void progress() const;

 private:
  explicit UcxWorker(const ucx::Api &api) : api_(api) {}
  Status open(const std::string &devices, bool tcp);

  const ucx::Api &api_;
  void *context_ = nullptr, *worker_ = nullptr;
  std::string transports_;
};

}  // namespace collc
