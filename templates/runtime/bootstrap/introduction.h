// The first data that the ranks of a communicator exchange at creation, and checks of it. Every rank gets the same data and
// calls the same checks, so all ranks come to the same result. No function blocks.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/tuning.h"

namespace collc {

// Sent as it lies in memory. Other builds may have other fields, so only `build` may be read until compare_builds() has
// succeeded.
struct Introduction {
  uint64_t build;
  uint64_t process;  // random, because process ids repeat between containers
  uint64_t machine;
  uint64_t network;
  uint64_t gpus;      // hash of the GPUs that the ranks represent (COLLC_GPUS)
  uint64_t tuning;    // digest of COLLC_TUNING
  uint64_t found;     // digest of COLLC_TOPOLOGY
  uint64_t disabled;  // 1: COLLC_DISABLE
  uint64_t checks;    // 1: COLLC_CHECK
  uint64_t tls;       // 1: COLLC_NET_TLS
  uint64_t cpus[16];
  char host[64];
};

// Fills in this rank's introduction. `gpus` are the GPUs that the ranks represent; `found` is the digest of the machine in
// COLLC_TOPOLOGY.
Status introduce(Introduction *mine, const std::vector<uint32_t> &gpus, const Tuning &tuning, uint64_t found);

// Fails, with the same message on every rank, if the ranks load different builds.
Status compare_builds(const std::vector<Introduction> &all);

// Fails if the tuning tables differ, because ranks that run different programs would wait for each other forever.
Status compare_tunings(const std::vector<Introduction> &all);

// Fails if this library cannot serve the ranks: ranks of one machine are in different network namespaces, or ranks have
// different COLLC_GPUS or different machines in COLLC_TOPOLOGY.
Status compare_places(const std::vector<Introduction> &all);

// Fails if any rank has COLLC_DISABLE set. That rank uses the real NCCL, so all others must use it too.
Status compare_disabled(const std::vector<Introduction> &all);

// Fails if the ranks are on several machines and COLLC_NET_TLS differs, so that some would encrypt their connections and
// others not.
Status compare_tls(const std::vector<Introduction> &all);

// Returns whether any rank has COLLC_CHECK set; then all ranks check.
bool asks_for_check(const std::vector<Introduction> &all);

// Returns the number of distinct CPU cores that the ranks on the machine of `rank` may use; at least 1.
uint32_t count_cores(const std::vector<Introduction> &all, uint32_t rank);

}  // namespace collc
