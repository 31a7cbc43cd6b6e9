// ncclGetUniqueId: an id, and a listener for its ranks.
#pragma once
#include "base/status.h"

namespace collc {

// Makes an id, and has this process listen for its ranks; for those on other servers too if `everywhere`, or if
// COLLC_SOCKET_IFNAME says where.
Status make_unique_id(ncclUniqueId *id, bool everywhere);

}  // namespace collc
