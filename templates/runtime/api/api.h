// Helpers shared by the functions of the API.
#pragma once
#include <cstdint>
#include <exception>
#include <new>
#include <string>

#define COLLC_API __attribute__((visibility("default")))
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
template <class Body>
ncclResult_t guarded(const char *function, Body body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc &) {
    status = fail(ncclSystemError, "out of memory");
  } catch (const std::exception &error) {
    status = fail(ncclInternalError, "%s", error.what());
  }
  if (status.ok() || status.code() == ncclInProgress || status.text().empty()) return status.code();
  return report(Status(status.code(), std::string(function) + ": " + status.text()));
}

// The result of the real NCCL, which can give the caller its own message.
inline Status forwarded(ncclResult_t result) { return Status(result, ""); }

template <class Body>
ncclResult_t with_communicator(const char *function, ncclComm_t comm, Body body) {
  return guarded(function, [&]() -> Status {
    CommunicatorPtr found;
    COLLC_RETURN_IF_FAILED(find_communicator(comm, &found));
    return body(found);
  });
}

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
template <class Theirs, class Ours>
ncclResult_t run(const char *function, ncclComm_t comm, Theirs theirs, Ours ours) {
  return guarded(function, [&]() -> Status {
    CommunicatorPtr found;
    COLLC_RETURN_IF_FAILED(note_failure(find_communicator(comm, &found)));
    if (found->is_sound()) return note_failure(ours(found));
    if (!check_made(*found).ok()) return note_failure(fail(ncclInvalidUsage, "the communicator is still being made"));
    const ncclComm_t real = found->real();
    if (real == nullptr) return note_failure(ours(found));
    COLLC_RETURN_IF_FAILED(note_failure(enter_real_group()));
    return forwarded(theirs(real));
  });
}

// A number of a communicator.
template <class Read>
ncclResult_t query(const char *function, ncclComm_t comm, int *value, Read read) {
  return with_communicator(function, comm, [&](const CommunicatorPtr &found) -> Status {
    if (value == nullptr) return fail(ncclInvalidArgument, "the place for the result is NULL");
    COLLC_RETURN_IF_FAILED(check_made(*found));
    *value = read(*found);
    return {};
  });
}

}  // namespace collc
