// Moves ranks that share cores (host/spread.h): `spread ALLOWED CORE...`, the cores that they may use, separated by commas, and
// the core of each rank. Ranks look in turn. Prints the cores of all ranks at first and after every move, until none moves.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "host/spread.h"

using namespace collc;

namespace {

void print(const std::vector<uint32_t> &cores) {
  for (const uint32_t core : cores) std::printf("%u ", core);
  std::puts("");
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (const char *core = std::strtok(argv[1], ","); core != nullptr; core = std::strtok(nullptr, ","))
    CPU_SET(std::atoi(core), &allowed);
  std::vector<uint32_t> cores;
  for (int i = 2; i < argc; ++i) cores.push_back(static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)));
  const auto nranks = static_cast<uint32_t>(cores.size());
  print(cores);
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < nranks; ++rank) {
      const uint32_t to = core_to_move_to(cores.data(), nranks, rank, allowed);
      if (to == kMostCores) continue;
      cores[rank] = to;
      moved = true;
      print(cores);
    }
  }
  return 0;
}
