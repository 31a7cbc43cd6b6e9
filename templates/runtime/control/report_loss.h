// Reports that a path class has failed, to the other ranks and to the log. Does not block.
#pragma once
#include <string>

#include "control/losses.h"

namespace collc {

// Returns false if the loss is known already. `why`, for the log: "an NVLink of its GPU is down".
bool report_loss(Losses &losses, uint32_t rank, uint32_t part, const std::string &why);

}  // namespace collc
