// UCX's context and worker of one communicator: what its connections over the ucx engine share.
#pragma once
#include <memory>
#include <string>

#include "base/bytes.h"
#include "wire/foreign.h"
#include "wire/ucx_api.h"

namespace collc {

class UcxWorker {
 public:
  // `interface`: of the network interface that machines meet on. `devices`: RDMA ports to use, such as "mlx5_0:1", with commas
  // between; "": all. UCX gets RDMA transports alone: over TCP it obeys whoever reaches its port (it writes where a stranger's
  // message says), so that takes COLLC_UCX_UNSAFE_TCP, for tests on networks of their own.
  static Status make(const std::string &interface, const std::string &devices, std::shared_ptr<UcxWorker> *made);
  ~UcxWorker();
  UcxWorker(const UcxWorker &) = delete;
  UcxWorker &operator=(const UcxWorker &) = delete;

  const ucx::Api &api() const { return api_; }
  void *get() const { return worker_; }
  // Where peers reach it, in UCX's own words.
  Status address(Bytes *address) const;
  // "rc, ud or dc" and so on, for people.
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
