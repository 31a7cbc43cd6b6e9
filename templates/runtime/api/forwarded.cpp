// Functions of newer NCCL releases that collc does not support itself. They are defined because a handle of collc must never
// reach the real NCCL. For communicators that the real NCCL serves they are forwarded with its handle; others get an error.
#include "api/api.h"
#include "base/environment.h"

using namespace collc;

using Window = ncclWindow_t;

extern "C" {

COLLC_ONLY_REAL(PutSignal,
                (const void *local, size_t count, ncclDataType_t type, int peer, Window window, size_t offset, int signal,
                 int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream),
                local, count, type, peer, window, offset, signal, context, flags, real, stream);
COLLC_ONLY_REAL(Signal, (int peer, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream), peer,
                signal, context, flags, real, stream);
COLLC_ONLY_REAL(WaitSignal, (int count, void *descriptions, ncclComm_t comm, cudaStream_t stream), count, descriptions, real,
                stream);
COLLC_ONLY_REAL(CommQueryProperties, (ncclComm_t comm, void *properties), real, properties);

// Calls with a configuration per call. The plan decides everything that it could select, so it is ignored for communicators
// of collc.
#define COLLC_WITH_CONFIG(name, parameters, plain, ...)                                                                    \
  COLLC_API ncclResult_t pnccl##name##Config parameters {                                                                  \
    Lookup found;                                                                                                          \
    if (!found.find(comm).ok() || found->real() == nullptr || config == nullptr) return plain;                             \
    return only_real("nccl" #name "Config", comm,                                                                          \
                     [&](ncclComm_t real) { return call_real(pnccl##name##Config, "nccl" #name "Config", __VA_ARGS__); }); \
  }                                                                                                                        \
  COLLC_ALIAS(ncclResult_t, name##Config, parameters)

COLLC_WITH_CONFIG(AllReduce,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                   cudaStream_t stream, const void *config),
                  pncclAllReduce(send, recv, count, type, op, comm, stream), send, recv, count, type, op, real, stream, config);
COLLC_WITH_CONFIG(Broadcast,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream, const void *config),
                  pncclBroadcast(send, recv, count, type, root, comm, stream), send, recv, count, type, root, real, stream,
                  config);
COLLC_WITH_CONFIG(Reduce,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                   cudaStream_t stream, const void *config),
                  pncclReduce(send, recv, count, type, op, root, comm, stream), send, recv, count, type, op, root, real, stream,
                  config);
COLLC_WITH_CONFIG(AllGather,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream,
                   const void *config),
                  pncclAllGather(send, recv, count, type, comm, stream), send, recv, count, type, real, stream, config);
COLLC_WITH_CONFIG(ReduceScatter,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                   cudaStream_t stream, const void *config),
                  pncclReduceScatter(send, recv, count, type, op, comm, stream), send, recv, count, type, op, real, stream,
                  config);
COLLC_WITH_CONFIG(AlltoAll,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream,
                   const void *config),
                  pncclAlltoAll(send, recv, count, type, comm, stream), send, recv, count, type, real, stream, config);
COLLC_WITH_CONFIG(Gather,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream, const void *config),
                  pncclGather(send, recv, count, type, root, comm, stream), send, recv, count, type, root, real, stream,
                  config);
COLLC_WITH_CONFIG(Scatter,
                  (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream, const void *config),
                  pncclScatter(send, recv, count, type, root, comm, stream), send, recv, count, type, root, real, stream,
                  config);

COLLC_API ncclResult_t pncclGroupSimulateEnd(void *info) {
  return guarded("ncclGroupSimulateEnd", [&]() -> Status {
    // The calls of such a group are not run; `collc simulate` predicts their times.
    if (!in_group()) return forwarded(call_real(pncclGroupSimulateEnd, "ncclGroupSimulateEnd", info));
    note_failure(fail(ncclInvalidUsage, "not supported")).ok();
    group_end().ok();
    return fail(ncclInvalidUsage, "not supported: `collc simulate` predicts times");
  });
}
COLLC_ALIAS(ncclResult_t, GroupSimulateEnd, (void *));

// Since NCCL 2.32; for the connections of all later communicators. Fails, so that no program believes that it encrypts
// connections of collc.
COLLC_API ncclResult_t pncclSetEncryption(const void *config) {
  return guarded("ncclSetEncryption", [&]() -> Status {
    if (is_set("COLLC_DISABLE")) return forwarded(call_real(pncclSetEncryption, "ncclSetEncryption", config));
    return fail(ncclInvalidUsage,
                "not supported: COLLC_NET_TLS=1 encrypts connections between servers (COLLC_DISABLE=1 leaves all to NCCL)");
  });
}
COLLC_ALIAS(ncclResult_t, SetEncryption, (const void *));

}  // extern "C"
