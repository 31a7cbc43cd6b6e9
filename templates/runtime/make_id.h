// ncclGetUniqueId: an id, and a listener for its ranks.
#pragma once
#include "status.h"

namespace collc {

// Makes an id, and has this process listen for its ranks.
Status make_unique_id(ncclUniqueId *id);

}  // namespace collc
