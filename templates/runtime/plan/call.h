// One call of one rank, and who plays which part of the plan.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/element.h"
#include "collc/collective_traits.h"
#include "collc/tables.h"
#include "nccl.h"

namespace collc {

inline const char *name_of(Collective collective) {
  return static_cast<uint32_t>(collective) < kCollectives ? traits(collective).name : "unknown collective";
}

// The reduction of a call. Averages are sums: of integers divided where they are complete, of floats with the factor 1 / ranks
// on every rank, so that no partial sum is larger than the largest input. (NCCL's FuncSumPostDiv and FuncPreMulSum.)
struct Operation {
  ncclRedOp_t kind = ncclSum;  // ncclSum, ncclProd, ncclMax, ncclMin
  bool average = false;
  bool scaled = false;          // every rank's input is multiplied by `scale` first; by its own, but for an average
  unsigned char scale[8] = {};  // one element of the call's type
  const void *scale_at = nullptr;  // where it lies when the call runs, if the backend reads it there
};

// What a call does: run a program, one end of a transfer between two ranks, or nothing, as it has no elements.
enum class Work : uint32_t { kProgram, kSend, kReceive, kNothing };

// One call of one rank, checked. Counts are NCCL's.
struct Call {
  Work work;
  uint32_t peer;  // NCCL rank at the other end of a transfer
  Collective collective;
  const Program *program;  // null in a communicator of one rank, whose calls only copy
  const Program *otherwise;  // what a rank may run in its place (Choices::widen); null: nothing else
  const void *input;
  void *output;
  uint64_t count;  // 0 where there is nothing to do
  ncclDataType_t type;
  Operation op;
  int root;  // NCCL rank, -1 without
  cudaStream_t stream;
  uint64_t number;     // of the communicator's collective calls, from 1; 0 for ncclSend and ncclRecv
  uint64_t signature;  // the same on all ranks whose calls match; of a transfer, at both its ends
  uint64_t what;       // packed (call_log.h)
  bool continues;      // one of the transfers that a collective is made of, and not the first
};

// Which plan serves a communicator, and who plays which part: NCCL rank <-> rank of the plan.
struct Placement {
  const Allocation *allocation = nullptr;  // null for one rank
  const GpuSet *set = nullptr;             // the GPUs that the ranks stand for; null if not declared
  uint32_t state = 0;                      // of the machine: whole, or after a loss
  std::vector<uint32_t> plan_rank;         // by NCCL rank
  std::vector<uint32_t> nccl_rank;         // by rank of the plan
  // The machine that each NCCL rank runs on, numbered as ranks come; empty if all are on one.
  std::vector<uint32_t> machine;
  uint32_t home = 0;  // the machine of this rank
  std::vector<std::string> host;  // of each NCCL rank, for people; empty if all are on one machine

  std::vector<uint64_t> buses;  // of each NCCL rank's GPU, as GpuPlace::bus; empty if nobody has told

  bool is_here(uint32_t rank) const { return machine.empty() || machine[rank] == home; }
  uint32_t nmachines() const {
    uint32_t most = 0;
    for (const uint32_t one : machine) most = one > most ? one : most;
    return most + 1;
  }
  // "rank 3", and where it is if there are several machines.
  std::string name_of(uint32_t rank) const {
    return "rank " + std::to_string(rank) + (host.empty() ? "" : " on " + host[rank]);
  }
};

inline uint64_t bytes_of(const Call &call) { return call.count * element_bytes(call.type); }

}  // namespace collc
