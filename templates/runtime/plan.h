// Looking things up in the step tables.
#pragma once
#include <string>
#include <vector>

#include "backend.h"

namespace collc {

// The tables that the generated source defines.
const Tables &tables();

// A number that two builds share only if they are the same build.
uint64_t build_fingerprint();

// The allocation for `nranks` ranks that stand for the GPUs `declared` (empty: any).
Status place(uint32_t nranks, const std::vector<std::string> &declared, Placement *placement);

// The program for a call of `bytes` (count * element size), or null if the library holds none. `root` is a plan rank or -1.
const Program *choose_program(const Allocation &allocation, Collective collective, int root, uint64_t bytes);

const char *name_of(Collective collective);

}  // namespace collc
