// Helpers shared by the functions of the API.
#pragma once
#include <cstdint>

#define COLLC_API __attribute__((visibility("default")))
#include "base/function_ref.h"
#include "base/log.h"
#include "communicator/group.h"
#include "nccl.h"
#include "communicator/real_nccl.h"

// The strong names are pnccl*; nccl* are weak aliases, so that tools can wrap them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmissing-attributes"  // an alias need not promise what the optimiser found
#endif
#define COLLC_ALIAS(result, name, arguments) COLLC_API result nccl##name arguments __attribute__((weak, alias("pnccl" #name)))

namespace collc {

// Runs `body`; nothing may be thrown through a C caller.
ncclResult_t guarded(const char *function, FunctionRef<Status()> body);

// The result of the real NCCL, which can give the caller its own message.
inline Status forwarded(ncclResult_t result) { return Status(result, ""); }

// Runs `body` with the communicator of a handle.
ncclResult_t with_communicator(const char *function, ncclComm_t comm, FunctionRef<Status(const CommunicatorPtr &)> body);

// A communicator that is still being made has neither size nor rank yet.
inline Status check_made(const Communicator &communicator) {
  const Status state = communicator.state();
  return state.code() == ncclInProgress ? state : Status();
}

inline Status check_rank(const Communicator &communicator, const char *what, int rank) {
  if (rank >= 0 && rank < static_cast<int>(communicator.nranks())) return {};
  return fail(ncclInvalidArgument, "%s %d is no rank of 0..%u", what, rank, communicator.nranks() - 1);
}

// A call that a group can hold: `theirs(real handle)` for a communicator of the real NCCL, else `ours(communicator)`.
ncclResult_t run(const char *function, ncclComm_t comm, FunctionRef<ncclResult_t(ncclComm_t)> theirs,
                 FunctionRef<Status(const CommunicatorPtr &)> ours);

// A number of a communicator.
ncclResult_t query(const char *function, ncclComm_t comm, int *value, FunctionRef<int(const Communicator &)> read);

}  // namespace collc
