// The functions of the NCCL API that query communicators, end them, and manage memory, operators and groups.
#include "api/api.h"

#include "base/element.h"

using namespace collc;

extern "C" {

ncclResult_t pncclGetVersion(int *version) {
  return guarded("ncclGetVersion", [&]() -> Status {
    if (version == nullptr) return fail(ncclInvalidArgument, "version is NULL");
    *version = NCCL_VERSION_CODE;
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, GetVersion, (int *));

const char *pncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with COLLC_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with COLLC_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the collc developers";
    case ncclInvalidArgument:
      return "invalid argument (run with COLLC_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with COLLC_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "collc operation in progress";
    case ncclTimeout:
      return "a time limit has passed";
    default:
      return "unknown result code";
  }
}
COLLC_ALIAS(const char *, GetErrorString, (ncclResult_t));

const char *pncclGetLastError(ncclComm_t) { return last_error(); }
COLLC_ALIAS(const char *, GetLastError, (ncclComm_t));

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  return with_communicator("ncclCommFinalize", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr) return forwarded(call_real(pncclCommFinalize, "ncclCommFinalize", found->real()));
    if (found->revoked()) return fail(ncclInvalidUsage, "the communicator was revoked");
    return note_failure(finalize(found));
  });
}
COLLC_ALIAS(ncclResult_t, CommFinalize, (ncclComm_t));

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  return guarded("ncclCommDestroy", [&]() -> Status {
    if (comm == nullptr) return {};
    CommunicatorPtr removed;
    COLLC_RETURN_IF_FAILED(remove_communicator(comm, &removed));
    removed->wait_until_made();
    ncclComm_t real = removed->release_real();
    return real == nullptr ? Status() : forwarded(call_real(pncclCommDestroy, "ncclCommDestroy", real));
  });
}
COLLC_ALIAS(ncclResult_t, CommDestroy, (ncclComm_t));

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  return guarded("ncclCommAbort", [&]() -> Status {
    if (comm == nullptr) return {};
    CommunicatorPtr removed;
    COLLC_RETURN_IF_FAILED(remove_communicator(comm, &removed));
    ncclComm_t real = removed->release_real();
    removed->abort();
    removed->wait_until_made();
    return real == nullptr ? Status() : forwarded(call_real(pncclCommAbort, "ncclCommAbort", real));
  });
}
COLLC_ALIAS(ncclResult_t, CommAbort, (ncclComm_t));

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  return with_communicator("ncclCommGetAsyncError", comm, [&](const CommunicatorPtr &found) -> Status {
    if (error == nullptr) return fail(ncclInvalidArgument, "the place for the error is NULL");
    const Status state = found->revoked() ? Status() : found->state();
    *error = state.code();
    // PyTorch then asks for the text of the error that it has found here.
    if (state.code() != ncclSuccess && state.code() != ncclInProgress) keep_for_last_error(state);
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, CommGetAsyncError, (ncclComm_t, ncclResult_t *));

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count) {
  return query("ncclCommCount", comm, count, [](const Communicator &c) { return static_cast<int>(c.nranks()); });
}
COLLC_ALIAS(ncclResult_t, CommCount, (const ncclComm_t, int *));

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device) {
  return query("ncclCommCuDevice", comm, device, [](const Communicator &c) { return c.device(); });
}
COLLC_ALIAS(ncclResult_t, CommCuDevice, (const ncclComm_t, int *));

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank) {
  return query("ncclCommUserRank", comm, rank, [](const Communicator &c) { return static_cast<int>(c.rank()); });
}
COLLC_ALIAS(ncclResult_t, CommUserRank, (const ncclComm_t, int *));

ncclResult_t pncclMemAlloc(void **memory, size_t size) {
  return guarded("ncclMemAlloc", [&]() -> Status {
    if (memory == nullptr || size == 0) return fail(ncclInvalidArgument, "nothing to allocate");
    *memory = backend().allocate(size);
    return *memory != nullptr ? Status() : fail(ncclSystemError, "no memory for %zu bytes", size);
  });
}
COLLC_ALIAS(ncclResult_t, MemAlloc, (void **, size_t));

ncclResult_t pncclMemFree(void *memory) {
  return guarded("ncclMemFree", [&] { return backend().release(memory); });
}
COLLC_ALIAS(ncclResult_t, MemFree, (void *));

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buffer, size_t size, void **handle) {
  return with_communicator("ncclCommRegister", comm, [&](const CommunicatorPtr &found) -> Status {
    if (handle == nullptr || buffer == nullptr) return fail(ncclInvalidArgument, "the buffer or the handle is NULL");
    if (found->real() != nullptr)
      return forwarded(call_real(pncclCommRegister, "ncclCommRegister", found->real(), buffer, size, handle));
    if (BufferRegistry *const buffers = found->buffers(); buffers != nullptr && found->is_sound())
      buffers->register_buffer(buffer, size);
    *handle = buffer;  // every buffer is used where it is, so the handle is the buffer
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, CommRegister, (const ncclComm_t, void *, size_t, void **));

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle) {
  return with_communicator("ncclCommDeregister", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr) return forwarded(call_real(pncclCommDeregister, "ncclCommDeregister", found->real(), handle));
    if (BufferRegistry *const buffers = found->buffers(); buffers != nullptr) buffers->withdraw_buffer(handle);
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, CommDeregister, (const ncclComm_t, void *));

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                                       ncclComm_t comm) {
  return with_communicator("ncclRedOpCreatePreMulSum", comm, [&](const CommunicatorPtr &found) -> Status {
    if (op == nullptr || scalar == nullptr) return fail(ncclInvalidArgument, "the scalar or the handle is NULL");
    if (element_bytes(type) == 0) return fail(ncclInvalidArgument, "type %d does not exist", static_cast<int>(type));
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
      return fail(ncclInvalidArgument, "residence %d does not exist", static_cast<int>(residence));
    if (found->real() != nullptr)
      return forwarded(
          call_real(pncclRedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum", op, scalar, type, residence, found->real()));
    *op = found->scalings().add(scalar, type, residence == ncclScalarHostImmediate);
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, RedOpCreatePreMulSum, (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t));

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return with_communicator("ncclRedOpDestroy", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr) return forwarded(call_real(pncclRedOpDestroy, "ncclRedOpDestroy", op, found->real()));
    return found->scalings().remove(op);
  });
}
COLLC_ALIAS(ncclResult_t, RedOpDestroy, (ncclRedOp_t, ncclComm_t));

ncclResult_t pncclGroupStart(void) {
  return guarded("ncclGroupStart", []() -> Status {
    group_start();
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, GroupStart, (void));

ncclResult_t pncclGroupEnd(void) {
  return guarded("ncclGroupEnd", [] { return group_end(); });
}
COLLC_ALIAS(ncclResult_t, GroupEnd, (void));

}  // extern "C"
