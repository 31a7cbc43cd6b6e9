// The part of UCX's C interface (ucp/api/ucp.h) that the ucx engine uses. It is declared here because UCX is loaded at run
// time, and no build needs its headers. The layouts and values are those of UCX 1.13 to 1.22; structs grow at their ends, and
// masks say which fields are set. tests/runtime/ucx_abi.cpp compares them with UCX's headers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace collc::ucx {

using Status8 = signed char;  // ucs_status_t
constexpr Status8 kOk = 0, kInProgress = 1;
constexpr Status8 kLast = -100;

constexpr uint64_t kFeatureTag = 1;
constexpr unsigned kSerialized = 1;  // UCS_THREAD_MODE_SERIALIZED
constexpr unsigned kPeerErrors = 1;  // UCP_ERR_HANDLING_MODE_PEER

struct Params {  // the first fields of ucp_params_t
  uint64_t mask = 0, features = 0;
  size_t request_size = 0;
  void *request_init = nullptr, *request_cleanup = nullptr;
  uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  size_t estimated_num_eps = 0, estimated_num_ppn = 0;
  const char *name = nullptr;
};
constexpr uint64_t kParamFeatures = 1 << 0, kParamEndpoints = 1 << 6;

struct WorkerParams {  // ucp_worker_params_t
  uint64_t mask = 0;
  unsigned thread_mode = 0;
  uint64_t cpu_mask[16] = {};
  unsigned events = 0;
  void *user_data = nullptr;
  int event_fd = 0;
  uint64_t flags = 0;
  const char *name = nullptr;
  size_t am_alignment = 0;
  uint64_t client_id = 0;
};
constexpr uint64_t kWorkerThreadMode = 1 << 0;

using OnError = void (*)(void *argument, void *endpoint, Status8 status);

struct EndpointParams {  // ucp_ep_params_t
  uint64_t mask = 0;
  const void *address = nullptr;
  unsigned error_mode = 0;
  OnError on_error = nullptr;
  void *error_argument = nullptr;
  void *user_data = nullptr;
  unsigned flags = 0;
  const void *peer = nullptr;
  uint32_t peer_size = 0;
  void *request = nullptr;
  const char *name = nullptr;
  const void *local = nullptr;
  uint32_t local_size = 0;
};
constexpr uint64_t kEndpointAddress = 1 << 0, kEndpointErrorMode = 1 << 1, kEndpointOnError = 1 << 2;

struct RequestParam {  // ucp_request_param_t
  uint32_t mask = 0, flags = 0;
  void *request = nullptr;
  void *callback = nullptr;
  uint64_t datatype = 0;
  void *user_data = nullptr;
  void *reply_buffer = nullptr;
  unsigned memory_type = 0;
  void *info = nullptr;
  void *memory = nullptr;
};
constexpr uint32_t kRequestFlags = 1 << 4, kRequestNotAtOnce = 1 << 16, kCloseByForce = 1 << 0;

struct TagInfo {  // ucp_tag_recv_info_t
  uint64_t tag = 0;
  size_t length = 0;
};

// UCX's functions, under their names.
struct Api {
  void (*ucp_get_version)(unsigned *major, unsigned *minor, unsigned *release);
  Status8 (*ucp_config_read)(const char *prefix, const char *file, void **config);
  Status8 (*ucp_config_modify)(void *config, const char *name, const char *value);
  void (*ucp_config_release)(void *config);
  Status8 (*ucp_init_version)(unsigned major, unsigned minor, const Params *params, const void *config, void **context);
  void (*ucp_cleanup)(void *context);
  Status8 (*ucp_worker_create)(void *context, const WorkerParams *params, void **worker);
  void (*ucp_worker_destroy)(void *worker);
  Status8 (*ucp_worker_get_address)(void *worker, void **address, size_t *length);
  void (*ucp_worker_release_address)(void *worker, void *address);
  unsigned (*ucp_worker_progress)(void *worker);
  Status8 (*ucp_ep_create)(void *worker, const EndpointParams *params, void **endpoint);
  void *(*ucp_ep_close_nbx)(void *endpoint, const RequestParam *param);
  void *(*ucp_ep_flush_nbx)(void *endpoint, const RequestParam *param);
  void *(*ucp_tag_send_nbx)(void *endpoint, const void *data, size_t size, uint64_t tag, const RequestParam *param);
  void *(*ucp_tag_recv_nbx)(void *worker, void *data, size_t size, uint64_t tag, uint64_t mask, const RequestParam *param);
  Status8 (*ucp_tag_recv_request_test)(void *request, TagInfo *info);
  Status8 (*ucp_request_check_status)(void *request);
  void (*ucp_request_cancel)(void *worker, void *request);
  void (*ucp_request_free)(void *request);
  const char *(*ucs_status_string)(Status8 status);
  std::string where;  // such as "UCX 1.13.1 (/usr/lib/libucp.so.0)"
};

// UCX returns a request, null for success, or an error as a pointer. Returns whether it is a request.
inline bool is_request(const void *returned) {
  return reinterpret_cast<uintptr_t>(returned) - 1 < static_cast<uintptr_t>(static_cast<intptr_t>(kLast)) - 1;
}
inline Status8 status_of(const void *returned) {
  return is_request(returned) ? kInProgress : static_cast<Status8>(reinterpret_cast<intptr_t>(returned));
}

// Loads the library of COLLC_UCX, or the system's libucp.so.0, once per process. It is never unloaded.
Status load(const Api **api);

}  // namespace collc::ucx
