// One kernel for each verb of multicast addresses, type and operation.
#include "collc/cuda/multimem.h"
using namespace collc::cuda;
#define VERB(name) extern "C" __global__ void name
#define SUM(name, type, op) \
  VERB(name)(const Pack *from, Pack *to, uint64_t flip) { store(to, switch_sum<type, op>(from, flip)); }

SUM(sum_f16, Half, Sum)
SUM(max_f16, Half, Max)
SUM(min_f16, Half, Min)
SUM(sum_bf16, Bfloat16, Sum)
SUM(max_bf16, Bfloat16, Max)
SUM(min_bf16, Bfloat16, Min)
SUM(sum_f32, float, Sum)
SUM(sum_f64, double, Sum)
SUM(sum_u32, uint32_t, Sum)
SUM(sum_u64, uint64_t, Sum)
// The order that each `flip` of Reducing asks for.
#define MOST(name, type, flip)              \
  constexpr uint64_t kFlipOf_##name = flip; \
  VERB(name)(const Pack *from, Pack *to) { store(to, switch_sum<type, Max>(from, kFlipOf_##name)); }
MOST(max_u32, uint32_t, reducing(3, 2).flip)
MOST(max_i32, uint32_t, reducing(2, 2).flip)
MOST(min_u32, uint32_t, reducing(3, 3).flip)
MOST(min_i32, uint32_t, reducing(2, 3).flip)
MOST(max_u64, uint64_t, reducing(5, 2).flip)
MOST(max_i64, uint64_t, reducing(4, 2).flip)
MOST(min_u64, uint64_t, reducing(5, 3).flip)
MOST(min_i64, uint64_t, reducing(4, 3).flip)
VERB(switch_store_)(Pack *to, Pack value) { switch_store(to, value); }
// Stores to the rank's slot, then the flag. After the flag, others read the slot through the multicast address.
VERB(alias_fence_)(Pack *to, Pack value, uint64_t *flag) {
  store(to, value);
  barrier();
  alias_fence();
  flag_store(flag, 1);
}
