// What the ranks of a communicator tell each other first, and what follows from it.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/tuning.h"

namespace collc {

// Only ever compared with those of ranks that load the same build, once compare_builds has passed.
struct Introduction {
  uint64_t build;
  uint64_t process;  // random: process ids repeat between containers
  uint64_t machine;
  uint64_t network;
  uint64_t gpus;      // hash of COLLC_GPUS
  uint64_t tuning;    // digest of COLLC_TUNING
  uint64_t disabled;  // 1: COLLC_DISABLE
  uint64_t cpus[16];
};

// This rank's; `gpus` are what the ranks stand for.
Status introduce(Introduction *mine, const std::vector<uint32_t> &gpus, const Tuning &tuning);

// Ranks that do not fit together are told so, in the same words everywhere.
Status compare_builds(const std::vector<Introduction> &all);

// Ranks that run different programs would wait for each other forever.
Status compare_tunings(const std::vector<Introduction> &all);

// Fails where this library cannot serve the ranks: on several machines, or as different GPUs.
Status compare_places(const std::vector<Introduction> &all);

// Fails if any rank has COLLC_DISABLE: one that leaves everything to the real NCCL needs the others there.
Status compare_disabled(const std::vector<Introduction> &all);

// The CPU cores that the ranks may use, all together; at least 1.
uint32_t count_cores(const std::vector<Introduction> &all);

}  // namespace collc
