// The environment variables that override the tables of a communicator: COLLC_PROTO or NCCL_PROTO, COLLC_CHUNK,
// COLLC_CHANNELS, COLLC_WEIGHTS and COLLC_BALANCE. Read once at creation; ranks exchange their values and compare them.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "plan/balance.h"
#include "plan/weights.h"

namespace collc {

// All ranks of a communicator must agree, except in `is_preference` and in `balance_seed` (rank 0's seed counts).
struct Overrides {
  static constexpr int32_t kSimple = 0;

  int32_t protocol = -1;       // protocol of every call, with the number that the tables use; -1: the library chooses
  uint32_t is_preference = 0;  // 1: `protocol` is from NCCL_PROTO; a call that cannot run it uses another
  uint32_t chunk_bytes = 0;    // COLLC_CHUNK; 0: as the tables say
  uint32_t channels = 0;       // COLLC_CHANNELS, the maximum; 0: as many as the tables say
  Weighting weighting;         // COLLC_WEIGHTS
  Balance balance = Balance::kDefault;  // COLLC_BALANCE
  uint32_t balance_seed = 0;          // SEED of COLLC_BALANCE=random:SEED
};

// Returns whether NCCL_PROTO names exactly one protocol. read_overrides() uses it then, unless COLLC_PROTO is set.
bool follows_nccl_proto();

// Fails with ncclInvalidUsage if a COLLC_ variable has a wrong value. A wrong NCCL_PROTO is ignored.
Status read_overrides(Overrides *overrides);

// Fails with ncclInvalidUsage if the overrides of rank 0 and of rank `rank` differ.
Status compare_overrides(const Overrides &first, const Overrides &other, uint32_t rank);

}  // namespace collc
