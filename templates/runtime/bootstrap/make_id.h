// ncclGetUniqueId: makes an id and listens for its ranks. Does not wait for ranks.
#pragma once
#include "base/status.h"

namespace collc {

// Makes an id. This process then listens for ranks on this machine; if `everywhere` or COLLC_SOCKET_IFNAME is set, also for
// ranks on other servers.
Status make_unique_id(ncclUniqueId *id, bool everywhere);

}  // namespace collc
