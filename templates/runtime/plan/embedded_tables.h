// The step tables that are linked into this library, and its build fingerprint. All functions are thread-safe and never block.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "collc/tables.h"

namespace collc {

// Returns the tables of the generated source; they live as long as the process.
const Tables &tables();

// Fails if the tables differ from those that the compiler wrote. The first call in a process computes the digest of all tables;
// later calls return the same result.
Status check_tables();

// Returns a hash of the manifest, which contains the build id. Equal on two ranks only if both load the same build.
uint64_t build_fingerprint();

// Returns whether the library has plans for several kinds of servers. Each run then uses one kind. COLLC_TOPOLOGY then has to
// describe the machine of the run.
bool serves_several_machines();

}  // namespace collc
