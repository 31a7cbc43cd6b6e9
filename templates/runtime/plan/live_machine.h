// The machine that COLLC_TOPOLOGY describes, and the state of the library's machine that it equals.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace collc {

// The machine of a run. Each rank reads it at creation; ranks compare their digests (bootstrap/introduction.h).
struct LiveMachine {
  bool is_described = false;            // COLLC_TOPOLOGY is set; without it the machine counts as complete
  uint64_t digest = 0;                  // of the file's text, so equal files have equal digests; 0 without a file
  std::vector<std::string> gpu_names;   // in the order of the file
  uint32_t state = 0;                   // index in Tables::states
  std::vector<uint32_t> topology_gpus;  // for each GPU of gpu_names, the matching GPU of the library's topology
  std::string mismatch;                 // why the library has no plan for this machine; empty if it has one
};

// Reads COLLC_TOPOLOGY, if set, and finds the state of the library's machine with the same GPUs and links, except for names and
// order. Fails if the file cannot be read or parsed. A machine that equals no state is not a failure: `mismatch` then has the
// reason, and place_ranks() refuses the communicator, which the real NCCL may serve.
Status read_live_machine(LiveMachine *machine);

// Reads the file `path` for read_live_machine(). Defined in match_machine.cpp, which only libraries that know several states of
// their machine contain; null in all other libraries.
__attribute__((weak)) Status match_machine(const char *path, LiveMachine *machine);

}  // namespace collc
