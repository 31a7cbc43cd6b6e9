// Extensions of NCCL's API for `collc tune`: the machine's name, and which program runs.
#include "api/api.h"

#include <algorithm>

#include "base/measure_copies.h"
#include "plan/embedded_tables.h"
#include "plan/tuning.h"

extern "C" {

// What a tuning file calls this machine.
COLLC_API const char *collc_machine() { return collc::machine_description(); }

// How many cores there are, and how far the first is from each of `most` (base/measure_copies.h).
COLLC_API uint32_t collc_measure_lines(uint32_t most, double *microseconds) { return collc::measure_lines(most, microseconds); }

// One round of copies between the first core and number `other`: microseconds by size and way (base/measure_copies.h), for a
// caller that knows all `nways`; 1 if done.
COLLC_API int collc_measure_copies(const uint64_t *sizes, uint32_t nsizes, uint32_t nways, uint32_t other,
                                   double *microseconds) {
  const bool named = nsizes != 0 && nways == static_cast<uint32_t>(collc::Way::kCount) &&
                     std::find(sizes, sizes + nsizes, 0) == sizes + nsizes;
  return named && collc::measure_copies(sizes, nsizes, other, microseconds) ? 1 : 0;
}

// Which of collc_programs a call of a communicator runs; -1 if we do not serve it or hold no such program.
COLLC_API int collc_program_of(ncclComm_t comm, uint32_t collective, int root, uint64_t bytes) {
  int number = -1;
  const auto look = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->real() != nullptr || root >= static_cast<int>(found->nranks())) return {};
    const collc::Program *program = found->choose(static_cast<collc::Collective>(collective), root, bytes);
    if (program != nullptr) number = static_cast<int>(program - collc::tables().programs);
    return {};
  };
  return collc::with_communicator("collc_program_of", comm, look) == ncclSuccess ? number : -1;
}

// From now on calls of this program's collective and root run it: on all ranks or none, and while no call runs. 1 if done.
COLLC_API int collc_force_program(ncclComm_t comm, int program) {
  int done = 0;
  const auto force = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (collc::check_made(*found).ok() && found->real() == nullptr && program >= 0)
      done = found->force(static_cast<uint32_t>(program)) ? 1 : 0;
    return {};
  };
  return collc::with_communicator("collc_force_program", comm, force) == ncclSuccess ? done : 0;
}

// From now on all calls that are cut into classes of links have these weights (step_program.h; 0: as the tables or COLLC_TUNING
// say), and nothing balances them: on all ranks or none, and while no call runs. 1 if done.
COLLC_API int collc_force_weights(ncclComm_t comm, uint32_t weights) {
  int done = 0;
  const auto force = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->real() != nullptr || found->backend_rank() == nullptr) return {};
    found->backend_rank()->force_weights(weights);
    done = 1;
    return {};
  };
  return collc::with_communicator("collc_force_weights", comm, force) == ncclSuccess ? done : 0;
}

// Nanoseconds from when the latest call began at this rank until each class (nvlink, pcie, net) had done its part; 0: it carried
// nothing. Only with weights forced, and after the call. 1 if that is known.
COLLC_API int collc_class_times(ncclComm_t comm, uint64_t *nanoseconds) {
  uint64_t spent[collc::kClasses] = {};
  bool known = false;
  const auto look = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (collc::check_made(*found).ok() && found->real() == nullptr && found->backend_rank() != nullptr)
      known = found->backend_rank()->class_times(spent);
    return {};
  };
  if (collc::with_communicator("collc_class_times", comm, look) != ncclSuccess || !known) return 0;
  std::copy(spent, spent + collc::kClasses, nanoseconds);
  return 1;
}

}  // extern "C"
