// Where a process runs, as far as other processes have to know.
#pragma once
#include <cstdint>
#include <string>

namespace collc {

// Not for secrets.
uint64_t hash_of(const std::string &text);

// The same for all processes of one machine since it was started, in whatever container: its boot id. COLLC_HOSTID says it
// where that lies.
uint64_t this_machine();

// The same for all processes of one network namespace of the machine; 0 if it cannot be told.
uint64_t this_network();

// True if two answers of this_network() may be the same namespace.
inline bool same_network(uint64_t one, uint64_t other) { return one == other || one == 0 || other == 0; }

}  // namespace collc
