// GPUDirect: with COLLC_GPUDIRECT=1 slots between servers of the rank whose process has the courier of its machine lie in memory of
// its GPU (card_slots.h), and cards of the network read and write there. Flags stay in pinned host memory, and slots of all other ranks too:
// plugins flush what has come by a buffer of one GPU. A rank that cannot has its slots in host memory, and says why.
#pragma once
#include <memory>

#include "cuda/device.h"
#include "executor/backend.h"

namespace collc::cuda {

// Memory that kernels of a rank and cards of the network use. Whoever has it last may be the courier, for which kernels wait, so it
// is freed as DeferredFrees are.
class CardMemory {
 public:
  CardMemory(const Device &device, Address at, uint64_t bytes) : device_(device), at_(at), bytes_(bytes) {}
  ~CardMemory();
  CardMemory(const CardMemory &) = delete;
  CardMemory &operator=(const CardMemory &) = delete;
  Address at() const { return at_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const Device &device_;
  Address at_;
  uint64_t bytes_;
};

// Whether this rank tries it, `wanted` by COLLC_GPUDIRECT. To be asked before machines are joined, also where it is not wanted.
bool tries_gpudirect(const RankContext &context, const Device &device, bool wanted);

// As join_halves(), of a rank that tries it. `own`: the memory of its slots; null: they are in host memory.
Status join_by_card(const RankContext &context, const Device &device, std::shared_ptr<const CardMemory> *own);

}  // namespace collc::cuda
