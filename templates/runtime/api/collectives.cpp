// The collectives of the NCCL API. Each checks all arguments, catches all exceptions, and gives each error a sentence. Calls
// of a communicator that the real NCCL serves are forwarded with the real NCCL's handle, never with a handle of collc.
#include "api/api.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "collc/collective_traits.h"
#include "base/element.h"
#include "base/number_types.h"

using namespace collc;

namespace {

Status check_buffers(const Communicator &communicator, const Call &call, bool sends, bool receives) {
  uint64_t bytes = element_bytes(call.type);
  if (bytes == 0) return fail(ncclInvalidArgument, "type %d does not exist", static_cast<int>(call.type));
  const bool overflows = __builtin_mul_overflow(bytes, call.count, &bytes) ||
                         __builtin_mul_overflow(bytes, uint64_t{communicator.nranks()}, &bytes);
  if (overflows || bytes > uint64_t{1} << 62)
    return fail(ncclInvalidArgument, "a count of %llu elements is too large", static_cast<unsigned long long>(call.count));
  if (sends && call.input == nullptr) return fail(ncclInvalidArgument, "the send buffer is NULL");
  if (receives && call.output == nullptr) return fail(ncclInvalidArgument, "the receive buffer is NULL");
  return {};
}

Status make_operation(Communicator &communicator, ncclRedOp_t op, ncclDataType_t type, Operation *operation) {
  if (op == ncclAvg) {
    operation->kind = ncclSum;
    operation->is_average = true;
    operation->has_scale = is_float(type) && communicator.nranks() > 1;
    if (operation->has_scale) store_reciprocal(communicator.nranks(), type, operation->scale);
    return {};
  }
  if (op < ncclSum || op >= ncclNumOps)
    return communicator.scalings().apply(op, type, backend().facts().reads_factors, operation);
  operation->kind = op;
  return {};
}

Call make_call(Work work, Collective kind, const void *input, void *output, size_t count, ncclDataType_t type, int root,
               cudaStream_t stream) {
  Call call;  // set field by field, because GCC clears `= {}` with a string instruction, which is slow to start
  call.work = work;
  call.peer = 0;
  call.collective = kind;
  call.program = call.alternative = nullptr;
  call.input = input;
  call.output = output;
  call.count = count;
  call.type = type;
  call.root = root;
  call.stream = stream;
  call.number = call.signature = call.packed_call = 0;
  call.is_continuation = false;
  return call;
}

// Submits a collective without elements. It moves nothing and does not wait, but ranks that make another call must be able to
// detect it.
Status nothing(const CommunicatorPtr &communicator, Submission &one) {
  one.call.work = Work::kNone;
  return submit(communicator, one);
}

// Submits a collective that runs a program. `op` is null if it only moves data, `root` is -1 if it has none.
Status collective(const CommunicatorPtr &communicator, Collective kind, const void *input, void *output, size_t count,
                  ncclDataType_t type, const ncclRedOp_t *op, int root, cudaStream_t stream) {
  const CollectiveTraits &row = traits(kind);
  if (row.rooted) COLLC_RETURN_IF_FAILED(check_rank(*communicator, "root", root));
  // Built in place, because a copy would wait until all earlier stores have left the core.
  Submission one{communicator->backend_rank(), make_call(Work::kProgram, kind, input, output, count, type, root, stream), {}};
  Call &call = one.call;
  if (count == 0) return nothing(communicator, one);
  const bool is_root = root == static_cast<int>(communicator->rank());
  COLLC_RETURN_IF_FAILED(check_buffers(*communicator, call, !row.root_has_input || is_root, !row.root_has_output || is_root));
  if (op != nullptr) COLLC_RETURN_IF_FAILED(make_operation(*communicator, *op, type, &call.op));
  return submit(communicator, one);
}

// Submits a collective that consists of transfers: block r of `input` goes to rank r, and block r of `output` comes from it.
// With `input_blocks` or `output_blocks` false, the buffer is one block for all ranks.
Status exchange(const CommunicatorPtr &communicator, Collective kind, const void *input, const std::vector<uint32_t> &to,
                bool input_blocks, void *output, const std::vector<uint32_t> &from, bool output_blocks, size_t count,
                ncclDataType_t type, int root, cudaStream_t stream) {
  Submission one{communicator->backend_rank(), make_call(Work::kSend, kind, input, output, count, type, root, stream), {}};
  if (count == 0) return nothing(communicator, one);
  const Call &whole = one.call;
  COLLC_RETURN_IF_FAILED(check_buffers(*communicator, whole, !to.empty(), !from.empty()));
  const size_t block = count * element_bytes(type);
  std::vector<Call> calls;
  for (const uint32_t peer : to) {
    Call call = whole;
    call.peer = peer;
    call.input = static_cast<const char *>(input) + (input_blocks ? peer * block : 0);
    calls.push_back(call);
  }
  for (const uint32_t peer : from) {
    Call call = whole;
    call.work = Work::kReceive;
    call.peer = peer;
    call.output = static_cast<char *>(output) + (output_blocks ? peer * block : 0);
    calls.push_back(call);
  }
  for (size_t i = 1; i < calls.size(); ++i) calls[i].is_continuation = true;
  return submit(communicator, calls);
}

std::vector<uint32_t> all_ranks(const Communicator &communicator) {
  std::vector<uint32_t> ranks(communicator.nranks());
  for (uint32_t r = 0; r < ranks.size(); ++r) ranks[r] = r;
  return ranks;
}

Status transfer(const CommunicatorPtr &communicator, Work work, const void *input, void *output, size_t count,
                ncclDataType_t type, int peer, cudaStream_t stream) {
  COLLC_RETURN_IF_FAILED(check_rank(*communicator, "peer", peer));
  Submission one{
      communicator->backend_rank(), make_call(work, Collective::kSendRecv, input, output, count, type, -1, stream), {}};
  one.call.peer = static_cast<uint32_t>(peer);
  if (count == 0) return communicator->state();
  COLLC_RETURN_IF_FAILED(check_buffers(*communicator, one.call, work == Work::kSend, work == Work::kReceive));
  return submit(communicator, one);
}

}  // namespace

extern "C" {

ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream) {
  return run(
      "ncclAllReduce", comm,
      [&](ncclComm_t real) { return call_real(pncclAllReduce, "ncclAllReduce", send, recv, count, type, op, real, stream); },
      [&](const CommunicatorPtr &found) {
        return collective(found, Collective::kAllReduce, send, recv, count, type, &op, -1, stream);
      });
}
COLLC_ALIAS(ncclResult_t, AllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));

ncclResult_t pncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return run(
      "ncclBroadcast", comm,
      [&](ncclComm_t real) { return call_real(pncclBroadcast, "ncclBroadcast", send, recv, count, type, root, real, stream); },
      [&](const CommunicatorPtr &found) {
        return collective(found, Collective::kBroadcast, send, recv, count, type, nullptr, root, stream);
      });
}
COLLC_ALIAS(ncclResult_t, Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return pncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
COLLC_ALIAS(ncclResult_t, Bcast, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return run(
      "ncclReduce", comm,
      [&](ncclComm_t real) { return call_real(pncclReduce, "ncclReduce", send, recv, count, type, op, root, real, stream); },
      [&](const CommunicatorPtr &found) {
        return collective(found, Collective::kReduce, send, recv, count, type, &op, root, stream);
      });
}
COLLC_ALIAS(ncclResult_t, Reduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return run(
      "ncclAllGather", comm,
      [&](ncclComm_t real) { return call_real(pncclAllGather, "ncclAllGather", send, recv, count, type, real, stream); },
      [&](const CommunicatorPtr &found) {
        return collective(found, Collective::kAllGather, send, recv, count, type, nullptr, -1, stream);
      });
}
COLLC_ALIAS(ncclResult_t, AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));

ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream) {
  return run(
      "ncclReduceScatter", comm,
      [&](ncclComm_t real) {
        return call_real(pncclReduceScatter, "ncclReduceScatter", send, recv, count, type, op, real, stream);
      },
      [&](const CommunicatorPtr &found) {
        return collective(found, Collective::kReduceScatter, send, recv, count, type, &op, -1, stream);
      });
}
COLLC_ALIAS(ncclResult_t, ReduceScatter, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));

ncclResult_t pncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return run(
      "ncclAlltoAll", comm,
      [&](ncclComm_t real) { return call_real(pncclAlltoAll, "ncclAlltoAll", send, recv, count, type, real, stream); },
      [&](const CommunicatorPtr &found) {
        const std::vector<uint32_t> all = all_ranks(*found);
        return exchange(found, Collective::kAllToAll, send, all, true, recv, all, true, count, type, -1, stream);
      });
}
COLLC_ALIAS(ncclResult_t, AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));

ncclResult_t pncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return run(
      "ncclGather", comm,
      [&](ncclComm_t real) { return call_real(pncclGather, "ncclGather", send, recv, count, type, root, real, stream); },
      [&](const CommunicatorPtr &found) -> Status {
        COLLC_RETURN_IF_FAILED(check_rank(*found, "root", root));
        const bool is_root = root == static_cast<int>(found->rank());
        const std::vector<uint32_t> from = is_root ? all_ranks(*found) : std::vector<uint32_t>();
        return exchange(found, Collective::kGather, send, {static_cast<uint32_t>(root)}, false, recv, from, true, count, type,
                        root, stream);
      });
}
COLLC_ALIAS(ncclResult_t, Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
  return run(
      "ncclScatter", comm,
      [&](ncclComm_t real) { return call_real(pncclScatter, "ncclScatter", send, recv, count, type, root, real, stream); },
      [&](const CommunicatorPtr &found) -> Status {
        COLLC_RETURN_IF_FAILED(check_rank(*found, "root", root));
        const bool is_root = root == static_cast<int>(found->rank());
        const std::vector<uint32_t> to = is_root ? all_ranks(*found) : std::vector<uint32_t>();
        return exchange(found, Collective::kScatter, send, to, true, recv, {static_cast<uint32_t>(root)}, false, count, type,
                        root, stream);
      });
}
COLLC_ALIAS(ncclResult_t, Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return run(
      "ncclSend", comm,
      [&](ncclComm_t real) { return call_real(pncclSend, "ncclSend", send, count, type, peer, real, stream); },
      [&](const CommunicatorPtr &found) { return transfer(found, Work::kSend, send, nullptr, count, type, peer, stream); });
}
COLLC_ALIAS(ncclResult_t, Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return run(
      "ncclRecv", comm,
      [&](ncclComm_t real) { return call_real(pncclRecv, "ncclRecv", recv, count, type, peer, real, stream); },
      [&](const CommunicatorPtr &found) { return transfer(found, Work::kReceive, nullptr, recv, count, type, peer, stream); });
}
COLLC_ALIAS(ncclResult_t, Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

}  // extern "C"
