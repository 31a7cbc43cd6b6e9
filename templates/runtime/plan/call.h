// One call of one rank: a collective, or one side of a transfer between two ranks.
#pragma once
#include <cstdint>

#include "base/element.h"
#include "collc/collective_traits.h"
#include "collc/tables.h"
#include "nccl.h"
#include "plan/placement.h"

namespace collc {

inline const char *name_of(Collective collective) {
  return static_cast<uint32_t>(collective) < kCollectives ? traits(collective).name : "unknown collective";
}

// The reduction of a call. An average is a sum: with integers each complete sum is divided by the number of ranks (NCCL's
// FuncSumPostDiv); with floats every rank multiplies its input by 1 / ranks (NCCL's FuncPreMulSum), so that no partial sum
// exceeds the largest input.
struct Operation {
  ncclRedOp_t kind = ncclSum;  // ncclSum, ncclProd, ncclMax or ncclMin
  bool is_average = false;
  bool has_scale = false;          // every rank multiplies its input by `scale`, which may differ by rank unless is_average
  unsigned char scale[8] = {};     // one element of the call's type
  const void *scale_address = nullptr;  // if not null, the kernels read the factor from here when the call runs
};

// The task of a call: run a program, send to a peer, receive from a peer, or nothing because it has no elements.
enum class Work : uint32_t { kProgram, kSend, kReceive, kNone };

// A call whose arguments have been checked. Ranks, roots and counts are NCCL's.
struct Call {
  Work work;
  uint32_t peer;  // the other rank of a transfer
  Collective collective;
  const Program *program;      // null in a communicator of one rank, whose calls only copy
  const Program *alternative;  // the rank may run this program instead (Choices::widen); null if there is none
  const void *input;
  void *output;
  uint64_t count;  // elements, as NCCL counts them for this collective; 0 if there is nothing to do
  ncclDataType_t type;
  Operation op;
  int root;  // -1 for collectives without a root
  cudaStream_t stream;
  uint64_t number;       // counts the collective calls of the communicator from 1; 0 for ncclSend and ncclRecv
  uint64_t signature;    // equal on all ranks whose calls match; for a transfer, equal on its two ranks
  uint64_t packed_call;  // collective, type, operation and root, or the transfer (pack_call() in control/call_log.h)
  bool is_continuation;  // the call is a transfer of a collective that consists of transfers, and not its first
};

inline uint64_t bytes_of(const Call &call) { return call.count * element_bytes(call.type); }

}  // namespace collc
