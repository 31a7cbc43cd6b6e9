// Identifiers of the machine and the network namespace of this process, which ranks compare at creation. No function blocks.
#pragma once
#include <cstdint>
#include <string>

namespace collc {

// Returns the FNV-1a hash of a text. Not for secrets.
uint64_t hash_of(const std::string &text);

// Returns a hash of the boot id, which all processes of one machine share until it is restarted, whatever their containers.
// If COLLC_HOSTID is set, returns a hash of its text instead, for machines on which the boot id is wrong.
uint64_t this_machine();

// Returns the same number for all processes of one network namespace of a machine; 0 if it cannot be read.
uint64_t this_network();

// Returns whether two results of this_network(), of processes on one machine, may be of the same namespace.
inline bool same_network(uint64_t one, uint64_t other) { return one == other || one == 0 || other == 0; }

}  // namespace collc
