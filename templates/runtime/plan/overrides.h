// COLLC_PROTO or NCCL_PROTO, COLLC_CHUNK, COLLC_CHANNELS, COLLC_WEIGHTS and COLLC_BALANCE.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "plan/balance.h"
#include "plan/weights.h"

namespace collc {

// What a user may override of the tables for a communicator, the same on all ranks.
struct Overrides {
  static constexpr int32_t kSimple = 0;

  int32_t protocol = -1;     // COLLC_PROTO, of every call, as tables number protocols; -1: as the tables say, or by size
  uint32_t chunk_bytes = 0;  // COLLC_CHUNK; 0: as the tables say
  uint32_t channels = 0;     // COLLC_CHANNELS, at most; 0: as many as the tables say
  uint32_t is_preference = 0;       // 1: the protocol is NCCL_PROTO's, which gives way where it cannot run
  Weighting weighting;       // COLLC_WEIGHTS
  Balance balance = Balance::kUsual;  // COLLC_BALANCE
  uint32_t balance_seed = 0;          // of random weights; the leader's counts
};

// Whether NCCL_PROTO counts: it names one protocol, as COLLC_PROTO would.
bool follows_nccl_proto();

// ncclInvalidUsage where a variable has a wrong value.
Status read_overrides(Overrides *overrides);

// ncclInvalidUsage where those of rank 0 and of `rank` differ.
Status compare_overrides(const Overrides &first, const Overrides &other, uint32_t rank);

}  // namespace collc
