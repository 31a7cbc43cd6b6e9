#include "make_id.h"

#include <cstring>

#include "backend.h"
#include "environment.h"
#include "listener.h"
#include "rendezvous.h"

namespace collc {

Status make_unique_id(ncclUniqueId *id) {
  Id made = {};
  double seconds = 0;
  COLLC_RETURN_IF_FAILED(bootstrap_seconds(&seconds));
  COLLC_RETURN_IF_FAILED(random_bytes(made.secret, sizeof made.secret));
  const bool everywhere = backend().may_span_servers() || is_set("COLLC_SOCKET_IFNAME");
  COLLC_RETURN_IF_FAILED(Listener::of_process().add(&made, seconds, everywhere));
  std::memcpy(made.magic, kIdMagic, sizeof kIdMagic);
  std::memcpy(id, &made, sizeof made);
  return {};
}

}  // namespace collc
