#include "plan/live_machine.h"

#include "base/environment.h"

namespace collc {

Status read_live_machine(LiveMachine *machine) {
  *machine = LiveMachine();
  const char *path = read_path("COLLC_TOPOLOGY");
  if (path == nullptr) return {};
  machine->is_described = true;
  if (match_machine != nullptr) return match_machine(path, machine);
  machine->mismatch = "COLLC_TOPOLOGY is set, and this library knows no losses of its machine: compile it with --survive 1";
  return {};
}

}  // namespace collc
