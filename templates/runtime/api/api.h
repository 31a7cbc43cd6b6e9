// Helpers of the functions of the NCCL API.
#pragma once
#include <cstdint>

#define COLLC_API __attribute__((visibility("default")))
#include "base/function_ref.h"
#include "base/log.h"
#include "communicator/group.h"
#include "nccl.h"
#include "communicator/real_nccl.h"

// The strong names are pnccl*. The nccl* names are weak aliases, so that tools can wrap them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmissing-attributes"  // an alias need not promise what the optimizer has found
#endif
#define COLLC_ALIAS(result, name, arguments) COLLC_API result nccl##name arguments __attribute__((weak, alias("pnccl" #name)))

// Defines a function that passes communicators of the real NCCL on to it, with its handle `real`, and refuses all others.
#define COLLC_ONLY_REAL(name, parameters, ...)                                                                                \
  COLLC_API ncclResult_t pnccl##name parameters {                                                                             \
    return only_real("nccl" #name, comm, [&](ncclComm_t real) { return call_real(pnccl##name, "nccl" #name, __VA_ARGS__); }); \
  }                                                                                                                           \
  COLLC_ALIAS(ncclResult_t, name, parameters)

// Defines a function that has no communicator. It calls the function of the real NCCL, and fails if there is none.
#define COLLC_PASSED_ON(name, parameters, ...)                                                                  \
  COLLC_API ncclResult_t pnccl##name parameters {                                                               \
    return guarded("nccl" #name, [&] { return forwarded(call_real(pnccl##name, "nccl" #name, __VA_ARGS__)); }); \
  }                                                                                                             \
  COLLC_ALIAS(ncclResult_t, name, parameters)

namespace collc {

// Runs `body` and returns its code. Turns exceptions into errors, because none may pass through a C caller, and reports
// errors under the name of the function.
ncclResult_t guarded(const char *function, FunctionRef<Status()> body);

// Returns the result of the real NCCL, without a text, because the real NCCL reports its errors itself.
inline Status forwarded(ncclResult_t result) { return Status(result, ""); }

// Runs `body` with the communicator of a handle, as guarded() does.
ncclResult_t with_communicator(const char *function, ncclComm_t comm, FunctionRef<Status(const CommunicatorPtr &)> body);

// Returns ncclInProgress while a communicator is created or finalized; before it is created, it has neither size nor rank.
inline Status check_made(const Communicator &communicator) {
  const Status state = communicator.state();
  return state.code() == ncclInProgress ? state : Status();
}

inline Status check_rank(const Communicator &communicator, const char *what, int rank) {
  if (rank >= 0 && rank < static_cast<int>(communicator.nranks())) return {};
  return fail(ncclInvalidArgument, "%s %d is no rank of 0..%u", what, rank, communicator.nranks() - 1);
}

// Runs a call that may be part of a group: `theirs(real handle)` if the real NCCL serves the communicator, else
// `ours(communicator)`.
ncclResult_t run(const char *function, ncclComm_t comm, FunctionRef<ncclResult_t(ncclComm_t)> theirs,
                 FunctionRef<Status(const CommunicatorPtr &)> ours);

// Runs `theirs(real handle)` for a communicator that the real NCCL serves, as run() does, and fails for all others.
ncclResult_t only_real(const char *function, ncclComm_t comm, FunctionRef<ncclResult_t(ncclComm_t)> theirs);

// Sets `value` to a number that read() returns for a communicator.
ncclResult_t query(const char *function, ncclComm_t comm, int *value, FunctionRef<int(const Communicator &)> read);

}  // namespace collc
