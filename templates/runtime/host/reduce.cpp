#include "host/reduce.h"

namespace collc {

namespace baseline {
ReduceFunction find(ncclDataType_t type, ncclRedOp_t op);
}
#if defined(COLLC_HAVE_V3)
namespace v3 {
ReduceFunction find(ncclDataType_t type, ncclRedOp_t op);
}
#endif

ReduceFunction reduce_function(ncclDataType_t type, ncclRedOp_t op) {
#if defined(COLLC_HAVE_V3)
  // The features of x86-64-v3 that the compiler may use in those loops.
  static const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                             __builtin_cpu_supports("bmi2");
  if (has_v3) return v3::find(type, op);
#endif
  return baseline::find(type, op);
}

}  // namespace collc
