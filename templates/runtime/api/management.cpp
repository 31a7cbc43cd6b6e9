// The functions of newer NCCL releases that stop communicators without ending them, or manage their memory.
#include <atomic>

#include "api/api.h"

using namespace collc;

extern "C" {

ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags) {
  return guarded("ncclCommRevoke", [&]() -> Status {
    if (comm == nullptr) return {};
    Lookup found;
    COLLC_RETURN_IF_FAILED(found.find(comm));
    if (found->real() != nullptr) return forwarded(call_real(pncclCommRevoke, "ncclCommRevoke", found->real(), flags));
    if (flags != NCCL_REVOKE_DEFAULT) return fail(ncclInvalidArgument, "flags %d do not exist", flags);
    COLLC_RETURN_IF_FAILED(check_made(*found.communicator()));
    return found->revoke();
  });
}
COLLC_ALIAS(ncclResult_t, CommRevoke, (ncclComm_t, int));

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags) {
  return with_communicator("ncclCommSuspend", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr) return forwarded(call_real(pncclCommSuspend, "ncclCommSuspend", found->real(), flags));
    if ((flags & ~NCCL_SUSPEND_MEM) != 0) return fail(ncclInvalidArgument, "flags %d do not exist", flags);
    COLLC_RETURN_IF_FAILED(check_made(*found));
    return (flags & NCCL_SUSPEND_MEM) != 0 ? found->suspend() : found->state();
  });
}
COLLC_ALIAS(ncclResult_t, CommSuspend, (ncclComm_t, int));

ncclResult_t pncclCommResume(ncclComm_t comm) {
  return with_communicator("ncclCommResume", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr) return forwarded(call_real(pncclCommResume, "ncclCommResume", found->real()));
    COLLC_RETURN_IF_FAILED(check_made(*found));
    return found->resume();
  });
}
COLLC_ALIAS(ncclResult_t, CommResume, (ncclComm_t));

ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t which, uint64_t *value) {
  return with_communicator("ncclCommMemStats", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr)
      return forwarded(call_real(pncclCommMemStats, "ncclCommMemStats", found->real(), which, value));
    if (value == nullptr) return fail(ncclInvalidArgument, "the place for the value is NULL");
    COLLC_RETURN_IF_FAILED(check_made(*found));
    switch (which) {
      case ncclStatGpuMemTotal:
      case ncclStatGpuMemPersist:  // other ranks have mapped all of it
        *value = found->backend_rank() != nullptr ? found->backend_rank()->gpu_bytes() : 0;
        return {};
      case ncclStatGpuMemSuspend:
        *value = 0;
        return {};
      case ncclStatGpuMemSuspended:
        *value = found->suspended() ? 1 : 0;
        return {};
    }
    return fail(ncclInvalidArgument, "statistic %d does not exist", static_cast<int>(which));
  });
}
COLLC_ALIAS(ncclResult_t, CommMemStats, (ncclComm_t, ncclCommMemStat_t, uint64_t *));

// How long the registration of a window waits for peers to map its buffer. If it takes longer, they map it later.
constexpr double kPatienceSeconds = 5;

// Sets the window to NULL, as NCCL does in communicators without symmetric memory, because peers do not read it.
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags) {
  return with_communicator("ncclCommWindowRegister", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr)
      return forwarded(
          call_real(pncclCommWindowRegister, "ncclCommWindowRegister", found->real(), buffer, size, window, flags));
    if (window == nullptr) return fail(ncclInvalidArgument, "the place for the window is NULL");
    *window = nullptr;
    if (buffer == nullptr || size == 0) return fail(ncclInvalidArgument, "a buffer of %zu bytes at %p", size, buffer);
    COLLC_RETURN_IF_FAILED(found->state());
    if (BufferRegistry *const buffers = found->buffers(); buffers != nullptr)
      buffers->offer_buffer(buffer, size, kPatienceSeconds);
    static std::atomic<bool> is_known{false};  // one line for all windows of the process
    if (!is_known.exchange(true, std::memory_order_relaxed))
      log(LogLevel::kWarn,
          "ncclCommWindowRegister gives NULL for a window: collc has no symmetric memory; calls use the buffer");
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, CommWindowRegister, (ncclComm_t, void *, size_t, ncclWindow_t *, int));

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return with_communicator("ncclCommWindowDeregister", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr)
      return forwarded(call_real(pncclCommWindowDeregister, "ncclCommWindowDeregister", found->real(), window));
    return window == nullptr ? Status() : fail(ncclInvalidArgument, "the window is not of this communicator");
  });
}
COLLC_ALIAS(ncclResult_t, CommWindowDeregister, (ncclComm_t, ncclWindow_t));

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **pointer) {
  return with_communicator("ncclWinGetUserPtr", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr)
      return forwarded(call_real(pncclWinGetUserPtr, "ncclWinGetUserPtr", found->real(), window, pointer));
    if (pointer == nullptr) return fail(ncclInvalidArgument, "the place for the pointer is NULL");
    *pointer = nullptr;
    return window == nullptr ? Status() : fail(ncclInvalidArgument, "the window is not of this communicator");
  });
}
COLLC_ALIAS(ncclResult_t, WinGetUserPtr, (ncclComm_t, ncclWindow_t, void **));

}  // extern "C"
