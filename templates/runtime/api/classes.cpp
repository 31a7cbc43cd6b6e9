// An extension of NCCL's API for programs that watch a machine: a path class has failed.
#include <string>

#include "api/api.h"
#include "plan/weights.h"

extern "C" {

// Makes all calls that no rank of the communicator has begun yet run without a class ("nvlink", "pcie", "net"), on all ranks;
// one rank calls it. Returns 1 if this call has changed it; 0 if the class was lost already or the communicator has no such
// class.
COLLC_API int collc_lose_class(ncclComm_t comm, const char *name) {
  int done = 0;
  const auto lose = [&](const collc::CommunicatorPtr &found) -> collc::Status {
    if (!collc::check_made(*found).ok() || found->real() != nullptr || found->backend_rank() == nullptr) return {};
    for (uint32_t c = 0; c < collc::kClasses && name != nullptr; ++c)
      if (std::string(name) == collc::class_name(c))
        done = found->backend_rank()->path_classes()->lose_class(c, "reported by collc_lose_class") ? 1 : 0;
    return {};
  };
  return collc::with_communicator("collc_lose_class", comm, lose) == ncclSuccess ? done : 0;
}

}  // extern "C"
