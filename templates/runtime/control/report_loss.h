// Says that a class of links has failed, to the ranks and to the log.
#pragma once
#include <string>

#include "control/losses.h"

namespace collc {

// False if that is known already. `why`: "an NVLink of its GPU is down".
bool report_loss(Losses &losses, uint32_t rank, uint32_t part, const std::string &why);

}  // namespace collc
