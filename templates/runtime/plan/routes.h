// The links that chunks cross, as the tables name them.
#pragma once
#include "base/status.h"
#include "plan/call.h"

namespace collc {

const char *name_of(LinkClass link);

// The GPU that an NCCL rank stands for, as the topology names it; empty where that is not known.
std::string gpu_name(const Placement &placement, uint32_t rank);

// COLLC_DEBUG=INFO: a line per class of links with the ranks that NCCL rank `rank` writes to over it. TRACE: a line per FIFO
// and reader with the way between them.
void log_routes(const Placement &placement, uint32_t rank);

}  // namespace collc
