// COLLC_PROTO, COLLC_CHUNK and COLLC_CHANNELS.
#pragma once
#include "collc/overrides.h"
#include "status.h"

namespace collc {

// ncclInvalidUsage where a variable has a wrong value.
Status read_overrides(Overrides *overrides);

// ncclInvalidUsage where those of rank 0 and of `rank` differ.
Status compare_overrides(const Overrides &first, const Overrides &other, uint32_t rank);

}  // namespace collc
