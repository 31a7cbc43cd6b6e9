// Implements the helpers of api.h.
#include <exception>
#include <new>
#include <string>

#include "api/api.h"

namespace collc {
namespace {

template <class Body>
ncclResult_t catching(const char *function, Body body) {
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

}  // namespace

ncclResult_t guarded(const char *function, FunctionRef<Status()> body) { return catching(function, body); }

ncclResult_t with_communicator(const char *function, ncclComm_t comm, FunctionRef<Status(const CommunicatorPtr &)> body) {
  return catching(function, [&]() -> Status {
    Lookup found;
    COLLC_RETURN_IF_FAILED(found.find(comm));
    return body(found.communicator());
  });
}

ncclResult_t run(const char *function, ncclComm_t comm, FunctionRef<ncclResult_t(ncclComm_t)> theirs,
                 FunctionRef<Status(const CommunicatorPtr &)> ours) {
  return catching(function, [&]() -> Status {
    Lookup found;
    COLLC_RETURN_IF_FAILED(note_failure(found.find(comm)));
    if (found->is_sound()) return note_failure(ours(found.communicator()));
    if (!check_made(*found.communicator()).ok())
      return note_failure(fail(ncclInvalidUsage, "the communicator is still being made"));
    const ncclComm_t real = found->real();
    if (real == nullptr) return note_failure(ours(found.communicator()));
    COLLC_RETURN_IF_FAILED(note_failure(enter_real_group()));
    return forwarded(theirs(real));
  });
}

ncclResult_t only_real(const char *function, ncclComm_t comm, FunctionRef<ncclResult_t(ncclComm_t)> theirs) {
  return run(function, comm, theirs, [](const CommunicatorPtr &) {
    return fail(ncclInvalidUsage, "not supported in a communicator that collc serves (COLLC_DISABLE=1 leaves all to NCCL)");
  });
}

ncclResult_t query(const char *function, ncclComm_t comm, int *value, FunctionRef<int(const Communicator &)> read) {
  return with_communicator(function, comm, [&](const CommunicatorPtr &found) -> Status {
    if (value == nullptr) return fail(ncclInvalidArgument, "the place for the result is NULL");
    COLLC_RETURN_IF_FAILED(check_made(*found));
    *value = read(*found);
    return {};
  });
}

}  // namespace collc
