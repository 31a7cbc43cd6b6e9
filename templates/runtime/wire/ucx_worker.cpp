#include "wire/ucx_worker.h"

#include <dirent.h>

#include "base/environment.h"
#include "base/log.h"

namespace collc {
namespace {

constexpr unsigned kApiMinor = 13;
constexpr int kProgressAtOnce = 16;

// Returns the names of this machine's RDMA devices, comma-separated.
std::string rdma_devices() {
  std::string names;
  DIR *const folder = opendir("/sys/class/infiniband");
  if (folder == nullptr) return names;
  while (const dirent *entry = readdir(folder))
    if (entry->d_name[0] != '.') names += (names.empty() ? "" : ", ") + printable(entry->d_name);
  closedir(folder);
  return names;
}

Status no_transport(const ucx::Api &api, bool tcp, const std::string &devices, ucx::Status8 status) {
  const char *const why = api.ucs_status_string(status);
  if (tcp) return fail(ncclSystemError, "engine ucx: %s cannot use TCP (%s)", api.where.c_str(), why);
  const std::string devices_here = rdma_devices();
  if (devices_here.empty())
    return fail(ncclSystemError,
                "engine ucx: this machine has no RDMA device (/sys/class/infiniband); COLLC_NET=tcp needs none");
  if (!devices.empty())
    return fail(ncclSystemError, "engine ucx: %s cannot use %s of %s (%s)", api.where.c_str(), devices.c_str(),
                devices_here.c_str(), why);
  return fail(ncclSystemError,
              "engine ucx: this machine has %s, but %s has no verbs for it (%s); set COLLC_UCX to one that has",
              devices_here.c_str(), api.where.c_str(), why);
}

}  // namespace

Status UcxWorker::make(const std::string &interface, const std::string &devices, std::shared_ptr<UcxWorker> *worker_out) {
  const UcxLock lock;
  COLLC_RETURN_IF_FAILED(UcxLock::check());
  const ucx::Api *api = nullptr;
  COLLC_RETURN_IF_FAILED(ucx::load(&api));
  const bool tcp = is_set("COLLC_UCX_UNSAFE_TCP");
  if (tcp)
    log(LogLevel::kWarn, "COLLC_UCX_UNSAFE_TCP: any process that reaches the ports of UCX on %s can write into this process",
        interface.c_str());
  std::shared_ptr<UcxWorker> worker(new UcxWorker(*api));
  COLLC_RETURN_IF_FAILED(worker->open(tcp ? interface : devices, tcp));
  *worker_out = std::move(worker);
  return {};
}

Status UcxWorker::open(const std::string &devices, bool tcp) {
  void *config = nullptr;
  ucx::Status8 status = api_.ucp_config_read(nullptr, nullptr, &config);
  if (status != ucx::kOk)
    return fail(ncclInvalidUsage, "engine ucx: a variable UCX_... is wrong (%s)", api_.ucs_status_string(status));
  status = api_.ucp_config_modify(config, "TLS", tcp ? "tcp" : "ib");
  if (status == ucx::kOk && !devices.empty()) status = api_.ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  ucx::Params params;
  params.mask = ucx::kParamFeatures;
  params.features = ucx::kFeatureTag;
  if (status == ucx::kOk) status = api_.ucp_init_version(1, kApiMinor, &params, config, &context_);
  api_.ucp_config_release(config);
  if (status != ucx::kOk) context_ = nullptr;
  ucx::WorkerParams worker;
  worker.mask = ucx::kWorkerThreadMode;
  worker.thread_mode = ucx::kSerialized;
  if (status == ucx::kOk) status = api_.ucp_worker_create(context_, &worker, &worker_);
  if (status == ucx::kOk) {
    transports_ = (tcp ? "TCP on " : "RDMA on ") + (devices.empty() ? "all devices" : devices);
    return {};
  }
  worker_ = nullptr;
  return no_transport(api_, tcp, devices, status);
}

UcxWorker::~UcxWorker() {
  const UcxLock lock;
  if (UcxLock::is_closed()) return;
  if (worker_ != nullptr) api_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) api_.ucp_cleanup(context_);
}

Status UcxWorker::address(Bytes *address) const {
  const UcxLock lock;
  void *text = nullptr;
  size_t length = 0;
  const ucx::Status8 status = api_.ucp_worker_get_address(worker_, &text, &length);
  if (status != ucx::kOk) return fail(ncclSystemError, "engine ucx: no address (%s)", api_.ucs_status_string(status));
  const auto *const words = static_cast<const unsigned char *>(text);
  address->assign(words, words + length);
  api_.ucp_worker_release_address(worker_, text);
  return {};
}

void UcxWorker::progress() const {
  for (int i = 0; i < kProgressAtOnce && api_.ucp_worker_progress(worker_) != 0; ++i) {
  }
}

}  // namespace collc
