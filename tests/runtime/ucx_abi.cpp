// Compares the declarations of wire/ucx_api.h with UCX's header of one version. Compiled, never run.
#include <ucp/api/ucp.h>

#include <cstddef>
#include <type_traits>

#include "wire/ucx_api.h"

using namespace collc;

namespace {

#define SAME_FIELD(ours, field, theirs, their_field)                                                                          \
  static_assert(offsetof(ours, field) == offsetof(theirs, their_field) && sizeof(ours::field) == sizeof(theirs::their_field), \
                #theirs "." #their_field)

SAME_FIELD(ucx::Params, mask, ucp_params_t, field_mask);
SAME_FIELD(ucx::Params, features, ucp_params_t, features);
SAME_FIELD(ucx::Params, estimated_num_eps, ucp_params_t, estimated_num_eps);
SAME_FIELD(ucx::Params, name, ucp_params_t, name);
SAME_FIELD(ucx::WorkerParams, mask, ucp_worker_params_t, field_mask);
SAME_FIELD(ucx::WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
SAME_FIELD(ucx::WorkerParams, cpu_mask, ucp_worker_params_t, cpu_mask);
SAME_FIELD(ucx::WorkerParams, client_id, ucp_worker_params_t, client_id);
SAME_FIELD(ucx::EndpointParams, mask, ucp_ep_params_t, field_mask);
SAME_FIELD(ucx::EndpointParams, address, ucp_ep_params_t, address);
SAME_FIELD(ucx::EndpointParams, error_mode, ucp_ep_params_t, err_mode);
SAME_FIELD(ucx::EndpointParams, on_error, ucp_ep_params_t, err_handler.cb);
SAME_FIELD(ucx::EndpointParams, error_argument, ucp_ep_params_t, err_handler.arg);
SAME_FIELD(ucx::EndpointParams, user_data, ucp_ep_params_t, user_data);
SAME_FIELD(ucx::EndpointParams, peer, ucp_ep_params_t, sockaddr.addr);
SAME_FIELD(ucx::EndpointParams, name, ucp_ep_params_t, name);
SAME_FIELD(ucx::EndpointParams, local_size, ucp_ep_params_t, local_sockaddr.addrlen);
SAME_FIELD(ucx::RequestParam, mask, ucp_request_param_t, op_attr_mask);
SAME_FIELD(ucx::RequestParam, flags, ucp_request_param_t, flags);
SAME_FIELD(ucx::RequestParam, request, ucp_request_param_t, request);
SAME_FIELD(ucx::RequestParam, callback, ucp_request_param_t, cb);
SAME_FIELD(ucx::RequestParam, datatype, ucp_request_param_t, datatype);
SAME_FIELD(ucx::RequestParam, memory_type, ucp_request_param_t, memory_type);
SAME_FIELD(ucx::RequestParam, memory, ucp_request_param_t, memh);
SAME_FIELD(ucx::TagInfo, tag, ucp_tag_recv_info_t, sender_tag);
SAME_FIELD(ucx::TagInfo, length, ucp_tag_recv_info_t, length);
// A struct that UCX writes has the same size here.
static_assert(sizeof(ucx::TagInfo) == sizeof(ucp_tag_recv_info_t));

static_assert(sizeof(ucx::Status8) == sizeof(ucs_status_t) && ucx::kOk == UCS_OK && ucx::kInProgress == UCS_INPROGRESS);
static_assert(ucx::kLast == UCS_ERR_LAST);
static_assert(ucx::kFeatureTag == UCP_FEATURE_TAG && ucx::kSerialized == UCS_THREAD_MODE_SERIALIZED);
static_assert(ucx::kPeerErrors == UCP_ERR_HANDLING_MODE_PEER);
static_assert(ucx::kParamFeatures == UCP_PARAM_FIELD_FEATURES && ucx::kParamEndpoints == UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
static_assert(ucx::kWorkerThreadMode == UCP_WORKER_PARAM_FIELD_THREAD_MODE);
static_assert(ucx::kEndpointAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(ucx::kEndpointErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(ucx::kEndpointOnError == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(ucx::kRequestFlags == UCP_OP_ATTR_FIELD_FLAGS && ucx::kRequestNotAtOnce == UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
static_assert(ucx::kCloseByForce == UCP_EP_CLOSE_FLAG_FORCE);

// Pointers, enumerations and whole numbers are passed alike if their sizes and kinds are; so functions compare by these.
template <typename T>
constexpr size_t kind_of() {
  return std::is_void_v<T> ? 0 : std::is_pointer_v<T> ? 1 : 2;
}
template <typename T>
constexpr size_t size_of() {
  if constexpr (std::is_void_v<T>)
    return 0;
  else
    return sizeof(T);
}
template <typename A, typename B>
constexpr bool same_word = kind_of<A>() == kind_of<B>() && size_of<A>() == size_of<B>();
template <typename A, typename B>
struct Same : std::false_type {};
template <typename A, typename... As, typename B, typename... Bs>
struct Same<A (*)(As...), B (*)(Bs...)> {
  static constexpr bool words() {
    if constexpr (sizeof...(As) == sizeof...(Bs))
      return same_word<A, B> && (same_word<As, Bs> && ...);
    else
      return false;
  }
  static constexpr bool value = words();
};
#define SAME_CALL(name) static_assert(Same<decltype(ucx::Api::name), decltype(&::name)>::value, #name)

SAME_CALL(ucp_get_version);
SAME_CALL(ucp_config_read);
SAME_CALL(ucp_config_modify);
SAME_CALL(ucp_config_release);
SAME_CALL(ucp_init_version);
SAME_CALL(ucp_cleanup);
SAME_CALL(ucp_worker_create);
SAME_CALL(ucp_worker_destroy);
SAME_CALL(ucp_worker_get_address);
SAME_CALL(ucp_worker_release_address);
SAME_CALL(ucp_worker_progress);
SAME_CALL(ucp_ep_create);
SAME_CALL(ucp_ep_close_nbx);
SAME_CALL(ucp_ep_flush_nbx);
SAME_CALL(ucp_tag_send_nbx);
SAME_CALL(ucp_tag_recv_nbx);
SAME_CALL(ucp_tag_recv_request_test);
SAME_CALL(ucp_request_check_status);
SAME_CALL(ucp_request_cancel);
SAME_CALL(ucp_request_free);
SAME_CALL(ucs_status_string);

}  // namespace
