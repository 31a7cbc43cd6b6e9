#include "bootstrap/make_id.h"

#include <cstring>

#include "base/environment.h"
#include "bootstrap/listener.h"
#include "bootstrap/rendezvous.h"

namespace collc {

Status make_unique_id(ncclUniqueId *id, bool everywhere) {
  Id made = {};
  double seconds = 0;
  COLLC_RETURN_IF_FAILED(bootstrap_seconds(&seconds));
  COLLC_RETURN_IF_FAILED(random_bytes(made.secret, sizeof made.secret));
  COLLC_RETURN_IF_FAILED(Listener::of_process().add(&made, seconds, everywhere || is_set("COLLC_SOCKET_IFNAME")));
  std::memcpy(made.magic, kIdMagic, sizeof kIdMagic);
  std::memcpy(id, &made, sizeof made);
  return {};
}

}  // namespace collc
