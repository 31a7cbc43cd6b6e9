// The first data that the ranks of a communicator exchange, and the checks based on it.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/tuning.h"

namespace collc {

// Only `build` may be compared before compare_builds has passed: other builds may have other fields.
struct Introduction {
  uint64_t build;
  uint64_t process;  // random: process ids repeat between containers
  uint64_t machine;
  uint64_t network;
  uint64_t gpus;      // hash of COLLC_GPUS
  uint64_t tuning;    // digest of COLLC_TUNING
  uint64_t found;     // digest of COLLC_TOPOLOGY
  uint64_t disabled;  // 1: COLLC_DISABLE
  uint64_t checks;    // 1: COLLC_CHECK
  uint64_t tls;       // 1: COLLC_NET_TLS
  uint64_t cpus[16];
  char host[64];
};

// Fills in this rank's introduction; `gpus` are the GPUs that the ranks represent, `found` is the digest of the machine found.
Status introduce(Introduction *mine, const std::vector<uint32_t> &gpus, const Tuning &tuning, uint64_t found);

// Fails, with the same message on every rank, if the ranks load different builds.
Status compare_builds(const std::vector<Introduction> &all);

// Fails if the tuning tables differ: ranks that run different programs would wait for each other forever.
Status compare_tunings(const std::vector<Introduction> &all);

// Fails where this library cannot serve the ranks: in several networks of one machine, or as different GPUs.
Status compare_places(const std::vector<Introduction> &all);

// Fails if any rank has COLLC_DISABLE set: that rank uses the real NCCL, so the others must too.
Status compare_disabled(const std::vector<Introduction> &all);

// Fails if ranks on several machines disagree whether to encrypt what passes between them.
Status compare_tls(const std::vector<Introduction> &all);

// Whether any rank has COLLC_CHECK set: then all of them check.
bool asks_for_check(const std::vector<Introduction> &all);

// Number of distinct CPU cores that the ranks on the machine of `rank` may use; at least 1.
uint32_t count_cores(const std::vector<Introduction> &all, uint32_t rank);

}  // namespace collc
