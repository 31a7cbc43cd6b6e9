// The machine that a run finds, as COLLC_TOPOLOGY describes it, and which state of the library's machine that is.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace collc {

struct FoundMachine {
  bool given = false;             // false: nobody said, and the machine is taken for whole
  uint64_t digest = 0;            // of the file, the same on ranks that found the same
  std::vector<std::string> gpus;  // names, in the order of the file
  uint32_t state = 0;             // of Tables::states
  std::vector<uint32_t> stands;   // by GPU found: which GPU of the library's machine it is
  std::string misfit;             // why no plan of the library fits; empty where one does
};

}  // namespace collc
