// Element-wise reduction on the CPU.
#pragma once
#include <cstdint>

#include "nccl.h"

namespace collc {

// The parts of one reduction of a chunk besides combining its sources. Only sums have factors, only sums of integers a divisor.
struct Finish {
  uint32_t divisor = 1;             // divide the result by it (avg, where the sum is complete); 1: nothing
  uint32_t streamed = 0;  // store this many of the first dests past the caches: all aligned alike within a cache line
  const bool *is_scaled = nullptr;  // by source: multiply it by `scale` first, and round to the type; null: none
  unsigned char scale[8] = {};  // one element of the type

  bool scales(uint32_t source) const { return is_scaled != nullptr && is_scaled[source]; }
};

// result = sources[0] op sources[1] op ..., left to right, stored in every dests[j]. Each element is computed in the type,
// or in f32 for types of 16 and 8 bits, which are rounded to nearest even once per call. Of floats the maximum and the minimum
// are maximumNumber and minimumNumber of IEEE 754-2019. A destination may be a source.
using ReduceFunction = void (*)(const void *const *sources, uint32_t nsources, void *const *dests, uint32_t ndests,
                                uint64_t elements, const Finish &finish);

// The function for a type and one of ncclSum, ncclProd, ncclMax, ncclMin, for the CPU that runs this; null for types
// that NCCL does not name. Averages and scaled sums are sums with a Finish.
ReduceFunction reduce_function(ncclDataType_t type, ncclRedOp_t op);

}  // namespace collc
