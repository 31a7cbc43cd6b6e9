#include "communicator/nccl_variables.h"

#include <strings.h>

#include <cstring>
#include <mutex>
#include <string>

#include "base/environment.h"
#include "base/log.h"
#include "executor/backend.h"
#include "plan/overrides.h"

namespace collc {
namespace {

constexpr const char *kMostChannels[] = {"NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"};

// The variable that limits the channels, and its value; null and 0: none does.
const char *channel_variable(uint32_t *value) {
  for (const char *const name : kMostChannels)
    if (read_whole(name, 1 << 20, value).ok() && *value != 0) return name;
  *value = 0;
  return nullptr;
}

// Says nothing of how NCCL works: for those who build it, or where it lies.
constexpr const char *kOfBuilds[] = {"NCCL_DIR",  "NCCL_HOME",     "NCCL_INCLUDE",     "NCCL_INCLUDE_DIR",
                                     "NCCL_LIB",  "NCCL_LIBRARY",  "NCCL_LIBRARY_DIR", "NCCL_PATH",
                                     "NCCL_ROOT", "NCCL_ROOT_DIR", "NCCL_VERSION"};

struct Reason {
  const char *name, *why;
};
constexpr Reason kReasons[] = {
    {"NCCL_ALGO", "the library's plan says which way data takes"},
    {"NCCL_CROSS_NIC", "the library's plan says which way data takes"},
    {"NCCL_IB_HCA", "COLLC_NET or COLLC_SOCKET_IFNAME names network interfaces"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "it is about GPUs, and a whole number"},
    {"NCCL_MAX_CTAS", "it is no whole number above 0"},
    {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS goes first, or it is no whole number above 0"},
    {"NCCL_MIN_CTAS", "a program has the channels of its plan"},
    {"NCCL_MIN_NCHANNELS", "a program has the channels of its plan"},
    {"NCCL_NET_GDR_LEVEL", "data for other machines passes through host memory"},
    {"NCCL_NET_PLUGIN", "sockets or UCX join machines (COLLC_NET)"},
    {"NCCL_NVLS_ENABLE", "programs inside a switch are those that collc compile --in-switch has put into the library"},
    {"NCCL_P2P_DISABLE", "it is about GPUs, and a whole number"},
    {"NCCL_P2P_LEVEL", "LOC would be, between GPUs: memory of other GPUs is used wherever it can be read"},
    {"NCCL_PROTO", "one of Simple, LL and LL128 would be, where COLLC_PROTO is unset"},
    {"NCCL_DEBUG", "COLLC_DEBUG goes first"},
    {"NCCL_SOCKET_IFNAME", "COLLC_SOCKET_IFNAME or COLLC_NET goes first"},
};

// Returns true if COLLC_NET chooses the engine for RDMA devices.
bool names_ucx(const char *net) {
  return net != nullptr && std::strncmp(net, "ucx", 3) == 0 && (net[3] == '\0' || net[3] == ':' || net[3] == ',');
}

// NCCL's user guide: never use peer access. 0 is what LOC was called before.
bool names_no_level(const char *level) {
  return level != nullptr && (strcasecmp(level, "LOC") == 0 || std::strcmp(level, "0") == 0);
}

bool followed(const std::string &name) {
  if (name == "NCCL_DEBUG") return read_text("COLLC_DEBUG") == nullptr;
  if (name == "NCCL_PROFILER_PLUGIN") return true;
  if (name == "NCCL_SOCKET_IFNAME") return read_text("COLLC_SOCKET_IFNAME") == nullptr;
  if (name == "NCCL_PROTO") return read_text("COLLC_PROTO") == nullptr && follows_nccl_proto();
  uint32_t number = 0;
  if (name == "NCCL_NVLS_ENABLE") return read_whole("NCCL_NVLS_ENABLE", 1 << 20, &number).ok() && number == 0;
  if (name == "NCCL_P2P_DISABLE" || name == "NCCL_LAUNCH_ORDER_IMPLICIT")
    return backend().gpus() != nullptr && read_whole(name.c_str(), 1 << 20, &number).ok();
  if (name == "NCCL_P2P_LEVEL") return backend().gpus() != nullptr && names_no_level(read_text("NCCL_P2P_LEVEL"));
  if (name == "NCCL_IB_HCA") {
    const char *const net = read_text("COLLC_NET");
    const bool open = net == nullptr || std::strcmp(net, "tcp") == 0;
    return names_ucx(net) || (open && read_text("COLLC_SOCKET_IFNAME") == nullptr);
  }
  uint32_t value = 0;
  const char *const limit = channel_variable(&value);
  if (limit != nullptr && name == limit) return true;
  for (const char *const one : kOfBuilds)
    if (name == one) return true;
  return false;
}

}  // namespace

uint32_t most_channels(uint32_t configured) {
  uint32_t value = 0;
  return channel_variable(&value) != nullptr ? value : configured;
}

bool forbids_peer_access() {
  uint32_t disabled = 0;
  const bool all = read_whole("NCCL_P2P_DISABLE", 1 << 20, &disabled).ok() && disabled != 0;
  return all || names_no_level(read_text("NCCL_P2P_LEVEL"));
}

bool orders_launches() {
  uint32_t asked = 0;
  return read_whole("NCCL_LAUNCH_ORDER_IMPLICIT", 1 << 20, &asked).ok() && asked != 0;
}

void say_what_is_not_followed() {
  static std::once_flag said;
  std::call_once(said, [] {
    std::string others;
    for (const std::string &name : names_with("NCCL_")) {
      if (followed(name)) continue;
      const char *why = nullptr;
      for (const Reason &reason : kReasons)
        if (name == reason.name) why = reason.why;
      if (why != nullptr)
        log(LogLevel::kWarn, "%s is not followed: %s", name.c_str(), why);
      else
        others += (others.empty() ? "" : ", ") + name;
    }
    if (!others.empty()) log(LogLevel::kInfo, "not followed here: %s", others.c_str());
  });
}

}  // namespace collc
