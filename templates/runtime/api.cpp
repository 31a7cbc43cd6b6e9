// The NCCL API: every argument checked, every exception caught, every error with a sentence.
#include <cstdint>
#include <new>
#include <string>

#define COLLC_API __attribute__((visibility("default")))
#include "environment.h"
#include "group.h"
#include "reduce.h"

using namespace collc;

namespace {

// Nothing may be thrown through a C caller.
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
  if (status.ok() || status.code() == ncclInProgress) return status.code();
  return report(Status(status.code(), std::string(function) + ": " + status.text()));
}

Status check_call(const Communicator &communicator, const Call &call, bool reduces) {
  if (element_bytes(call.type) == 0) return fail(ncclInvalidArgument, "type %d does not exist", static_cast<int>(call.type));
  if (call.root >= static_cast<int>(communicator.nranks()) || call.root < -1)
    return fail(ncclInvalidArgument, "root %d is no rank of 0..%u", call.root, communicator.nranks() - 1);
  const uint64_t most = (uint64_t{1} << 62) / element_bytes(call.type) / communicator.nranks();
  if (call.count > most) return fail(ncclInvalidArgument, "a count of %llu is absurd", static_cast<unsigned long long>(call.count));
  const bool is_root = call.root == static_cast<int>(communicator.rank());
  const bool sends = call.root < 0 || is_root || reduces;
  const bool receives = call.root < 0 || is_root || !reduces;
  if (sends && call.input == nullptr) return fail(ncclInvalidArgument, "the send buffer is NULL");
  if (receives && call.output == nullptr) return fail(ncclInvalidArgument, "the receive buffer is NULL");
  return {};
}

Status make_operation(ncclRedOp_t op, Operation *operation) {
  switch (op) {
    case ncclSum:
    case ncclProd:
    case ncclMax:
    case ncclMin:
      operation->kind = op;
      return {};
    case ncclAvg:
      operation->kind = ncclSum;
      operation->average = true;
      return {};
    default:
      return fail(ncclInvalidArgument, "reduction %d does not exist", static_cast<int>(op));
  }
}

// One collective of one rank. `op` is null for those that only move data.
Status collective(Collective kind, const void *input, void *output, size_t count, ncclDataType_t type,
                  const ncclRedOp_t *op, int root, ncclComm_t handle, cudaStream_t stream) {
  CommunicatorPtr communicator;
  COLLC_RETURN_IF_FAILED(find_communicator(handle, &communicator));
  Call call = {};
  call.collective = kind;
  call.input = input;
  call.output = output;
  call.count = count;
  call.type = type;
  call.root = root;
  call.stream = stream;
  if (op != nullptr) COLLC_RETURN_IF_FAILED(make_operation(*op, &call.op));
  const bool rooted = kind == Collective::kBroadcast || kind == Collective::kReduce;
  if (rooted && root < 0) return fail(ncclInvalidArgument, "root %d is no rank of 0..%u", root, communicator->nranks() - 1);
  if (count == 0) return communicator->state();
  COLLC_RETURN_IF_FAILED(check_call(*communicator, call, op != nullptr));
  return submit(communicator, call);
}

ncclResult_t run_collective(const char *function, Collective kind, const void *input, void *output, size_t count,
                            ncclDataType_t type, const ncclRedOp_t *op, int root, ncclComm_t handle,
                            cudaStream_t stream) {
  return guarded(function, [&] {
    return note_failure(collective(kind, input, output, count, type, op, root, handle, stream));
  });
}

// The part of a caller's configuration that means something to us. Fields newer than its version keep their defaults.
Status read_config(const ncclConfig_t *config, bool *blocking) {
  *blocking = true;
  if (config == nullptr) return {};
  if (config->magic != NCCL_CONFIG_MAGIC)
    return fail(ncclInvalidArgument, "the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
  const size_t end_of_blocking = offsetof(ncclConfig_t, blocking) + sizeof config->blocking;
  if (config->size < end_of_blocking || config->blocking == NCCL_CONFIG_UNDEF_INT) return {};
  if (config->blocking != 0 && config->blocking != 1)
    return fail(ncclInvalidArgument, "blocking is %d, not 0 or 1", config->blocking);
  *blocking = config->blocking == 1;
  return {};
}

Status create_rank(ncclComm_t *handle, int nranks, const ncclUniqueId &id, int rank, const int *device,
                   const ncclConfig_t *config) {
  if (handle == nullptr) return fail(ncclInvalidArgument, "the place for the communicator is NULL");
  *handle = nullptr;
  if (nranks < 1 || nranks > 1 << 20) return fail(ncclInvalidArgument, "%d ranks are not possible", nranks);
  if (rank < 0 || rank >= nranks) return fail(ncclInvalidArgument, "rank %d is not in 0..%d", rank, nranks - 1);
  if (!is_our_id(id)) return fail(ncclInvalidArgument, "the unique id was not made by this library's ncclGetUniqueId");
  bool blocking = true;
  COLLC_RETURN_IF_FAILED(read_config(config, &blocking));
  int current = 0;
  if (device != nullptr)
    current = *device;
  else
    COLLC_RETURN_IF_FAILED(backend().current_device(&current));
  const auto communicator = std::make_shared<Communicator>(static_cast<uint32_t>(nranks), static_cast<uint32_t>(rank));
  communicator->set_blocking(blocking);
  return create(communicator, id, current, handle);
}

// A number of a communicator.
template <class Read>
ncclResult_t query(const char *function, ncclComm_t comm, int *value, Read read) {
  return guarded(function, [&]() -> Status {
    if (value == nullptr) return fail(ncclInvalidArgument, "the place for the result is NULL");
    CommunicatorPtr found;
    COLLC_RETURN_IF_FAILED(find_communicator(comm, &found));
    *value = read(*found);
    return {};
  });
}

}  // namespace

extern "C" {

// The strong names are pnccl*; nccl* are weak aliases, so that tools can wrap them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmissing-attributes"  // an alias need not promise what the optimiser found
#endif
#define COLLC_ALIAS(result, name, arguments) \
  COLLC_API result nccl##name arguments __attribute__((weak, alias("pnccl" #name)))

ncclResult_t pncclGetVersion(int *version) {
  return guarded("ncclGetVersion", [&]() -> Status {
    if (version == nullptr) return fail(ncclInvalidArgument, "version is NULL");
    *version = NCCL_VERSION_CODE;
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, GetVersion, (int *));

ncclResult_t pncclGetUniqueId(ncclUniqueId *id) {
  return guarded("ncclGetUniqueId", [&]() -> Status {
    if (id == nullptr) return fail(ncclInvalidArgument, "the id is NULL");
    return make_unique_id(id);
  });
}
COLLC_ALIAS(ncclResult_t, GetUniqueId, (ncclUniqueId *));

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
    default:
      return "unknown result code";
  }
}
COLLC_ALIAS(const char *, GetErrorString, (ncclResult_t));

const char *pncclGetLastError(ncclComm_t) { return last_error(); }
COLLC_ALIAS(const char *, GetLastError, (ncclComm_t));

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return guarded("ncclCommInitRankConfig", [&] { return note_failure(create_rank(comm, nranks, id, rank, nullptr, config)); });
}
COLLC_ALIAS(ncclResult_t, CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  return guarded("ncclCommInitRank", [&] { return note_failure(create_rank(comm, nranks, id, rank, nullptr, nullptr)); });
}
COLLC_ALIAS(ncclResult_t, CommInitRank, (ncclComm_t *, int, ncclUniqueId, int));

ncclResult_t pncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                       ncclConfig_t *config) {
  return guarded("ncclCommInitRankScalable", [&]() -> Status {
    if (ids == nullptr || nids < 1) return note_failure(fail(ncclInvalidArgument, "%d unique ids", nids));
    // One listener is enough for one machine: the first id's.
    return note_failure(create_rank(comm, nranks, ids[0], rank, nullptr, config));
  });
}
COLLC_ALIAS(ncclResult_t, CommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *));

ncclResult_t pncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist) {
  return guarded("ncclCommInitAll", [&]() -> Status {
    if (comms == nullptr || ndev < 1) return note_failure(fail(ncclInvalidArgument, "%d communicators", ndev));
    ncclUniqueId id;
    COLLC_RETURN_IF_FAILED(make_unique_id(&id));
    group_start();
    Status first;
    for (int i = 0; i < ndev; ++i) {
      const int device = devlist != nullptr ? devlist[i] : i;
      const Status created = note_failure(create_rank(&comms[i], ndev, id, i, &device, nullptr));
      if (first.ok()) first = created;
    }
    const Status ended = group_end();
    if (!ended.ok())
      for (int i = 0; i < ndev; ++i) {
        CommunicatorPtr removed;
        if (comms[i] != nullptr) remove_communicator(comms[i], &removed).ok();
        comms[i] = nullptr;
      }
    return ended;
  });
}
COLLC_ALIAS(ncclResult_t, CommInitAll, (ncclComm_t *, int, const int *));

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  // Calls have ended when they return, so there is nothing to flush.
  return guarded("ncclCommFinalize", [&]() -> Status {
    CommunicatorPtr found;
    COLLC_RETURN_IF_FAILED(find_communicator(comm, &found));
    return found->state();
  });
}
COLLC_ALIAS(ncclResult_t, CommFinalize, (ncclComm_t));

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  return guarded("ncclCommDestroy", [&]() -> Status {
    if (comm == nullptr) return {};
    CommunicatorPtr removed;
    COLLC_RETURN_IF_FAILED(remove_communicator(comm, &removed));
    removed->join();
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, CommDestroy, (ncclComm_t));

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  return guarded("ncclCommAbort", [&]() -> Status {
    if (comm == nullptr) return {};
    CommunicatorPtr removed;
    COLLC_RETURN_IF_FAILED(remove_communicator(comm, &removed));
    removed->abort();
    removed->join();
    return {};
  });
}
COLLC_ALIAS(ncclResult_t, CommAbort, (ncclComm_t));

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  return guarded("ncclCommGetAsyncError", [&]() -> Status {
    if (error == nullptr) return fail(ncclInvalidArgument, "the place for the error is NULL");
    CommunicatorPtr found;
    COLLC_RETURN_IF_FAILED(find_communicator(comm, &found));
    *error = found->state().code();
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

ncclResult_t pncclGroupStart(void) {
  group_start();
  return ncclSuccess;
}
COLLC_ALIAS(ncclResult_t, GroupStart, (void));

ncclResult_t pncclGroupEnd(void) {
  return guarded("ncclGroupEnd", [] { return group_end(); });
}
COLLC_ALIAS(ncclResult_t, GroupEnd, (void));

ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
  return run_collective("ncclAllReduce", Collective::kAllReduce, send, recv, count, type, &op, -1, comm, stream);
}
COLLC_ALIAS(ncclResult_t, AllReduce,
            (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));

ncclResult_t pncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return run_collective("ncclBroadcast", Collective::kBroadcast, send, recv, count, type, nullptr, root, comm, stream);
}
COLLC_ALIAS(ncclResult_t, Broadcast,
            (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return run_collective("ncclBcast", Collective::kBroadcast, buffer, buffer, count, type, nullptr, root, comm, stream);
}
COLLC_ALIAS(ncclResult_t, Bcast, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return run_collective("ncclReduce", Collective::kReduce, send, recv, count, type, &op, root, comm, stream);
}
COLLC_ALIAS(ncclResult_t, Reduce,
            (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return run_collective("ncclAllGather", Collective::kAllGather, send, recv, count, type, nullptr, -1, comm, stream);
}
COLLC_ALIAS(ncclResult_t, AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));

ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream) {
  return run_collective("ncclReduceScatter", Collective::kReduceScatter, send, recv, count, type, &op, -1, comm, stream);
}
COLLC_ALIAS(ncclResult_t, ReduceScatter,
            (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));

}  // extern "C"
