#include "plan/find_machine.h"

#include "base/environment.h"

namespace collc {

Status find_machine(FoundMachine *found) {
  *found = FoundMachine();
  const char *path = read_path("COLLC_TOPOLOGY");
  if (path == nullptr) return {};
  found->given = true;
  if (match_machine != nullptr) return match_machine(path, found);
  found->misfit = "COLLC_TOPOLOGY is set, and this library knows no losses of its machine: compile it with --survive 1";
  return {};
}

}  // namespace collc
