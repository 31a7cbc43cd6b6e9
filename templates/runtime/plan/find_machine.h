// Which state of the library's machine a run finds.
#pragma once
#include "base/status.h"
#include "plan/found_machine.h"

namespace collc {

// Reads COLLC_TOPOLOGY and looks for a state of the machine that has exactly these GPUs and links, up to names and order.
// Fails where the file is none; a machine that fits no state is no failure, the real NCCL may take it.
Status find_machine(FoundMachine *found);

// The part of it that only libraries with states of their machine are linked with; null in the others.
__attribute__((weak)) Status match_machine(const char *path, FoundMachine *found);

}  // namespace collc
