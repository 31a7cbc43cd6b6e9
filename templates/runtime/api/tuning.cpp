// Extensions of NCCL's API for `collc tune`: the machine's name, measurements of copies, and the choice of programs.
#include "api/api.h"

#include <algorithm>

#include "base/measure_copies.h"
#include "plan/embedded_tables.h"
#include "plan/tuning.h"

extern "C" {

// Returns the name of this machine in tuning files.
COLLC_API const char *collc_machine() { return collc::machine_description(); }

// Returns the number of cores and measures the time of a line load between the first core and each of the first `most`
// (base/measure_copies.h).
COLLC_API uint32_t collc_measure_lines(uint32_t most, double *microseconds) { return collc::measure_lines(most, microseconds); }

// Measures copies between the first core and core number `other`, once: microseconds by size and way (base/measure_copies.h).
// `nways` must be the number of ways, which shows that the caller knows them all. Returns 1 if it succeeded.
COLLC_API int collc_measure_copies(const uint64_t *sizes, uint32_t nsizes, uint32_t nways, uint32_t other,
                                   double *microseconds) {
  const bool named = nsizes != 0 && nways == static_cast<uint32_t>(collc::Way::kCount) &&
                     std::find(sizes, sizes + nsizes, 0) == sizes + nsizes;
  return named && collc::measure_copies(sizes, nsizes, other, microseconds) ? 1 : 0;
}

// Returns the number in collc_programs of the program that a call of a communicator runs; -1 if the real NCCL serves it or
// there is none.
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

// Makes calls of this program's collective and root run this program from now on. All ranks must call it, while no call runs.
// Returns 1 if it succeeded.
COLLC_API int collc_force_program(ncclComm_t comm, int program) {
  int done = 0;
  const auto force = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (collc::check_made(*found).ok() && found->real() == nullptr && program >= 0)
      done = found->force(static_cast<uint32_t>(program)) ? 1 : 0;
    return {};
  };
  return collc::with_communicator("collc_force_program", comm, force) == ncclSuccess ? done : 0;
}

// Gives all calls that are split into path classes these weights from now on (step_program.h; 0: the tables' or
// COLLC_TUNING's), and stops balancing them. All ranks must call it, while no call runs. Returns 1 if it succeeded.
COLLC_API int collc_force_weights(ncclComm_t comm, uint32_t weights) {
  int done = 0;
  const auto force = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->real() != nullptr || found->backend_rank() == nullptr) return {};
    found->backend_rank()->path_classes()->force_weights(weights);
    done = 1;
    return {};
  };
  return collc::with_communicator("collc_force_weights", comm, force) == ncclSuccess ? done : 0;
}

// Writes the ns from the begin of the latest call on this rank until each class (nvlink, pcie, net) had done its part; 0 if
// the class carried nothing. Call it after the call, with forced weights. Returns 1 if the times are known.
COLLC_API int collc_class_times(ncclComm_t comm, uint64_t *nanoseconds) {
  uint64_t spent[collc::kClasses] = {};
  bool known = false;
  const auto look = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (collc::check_made(*found).ok() && found->real() == nullptr && found->backend_rank() != nullptr)
      known = found->backend_rank()->path_classes()->class_times(spent);
    return {};
  };
  if (collc::with_communicator("collc_class_times", comm, look) != ncclSuccess || !known) return 0;
  std::copy(spent, spent + collc::kClasses, nanoseconds);
  return 1;
}

}  // extern "C"
