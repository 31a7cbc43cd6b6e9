// The verbs of multicast addresses: one address for the memories of all ranks at one offset, behind a switch (NVLS).
//
//   switch_sum, switch_store   16 bytes: what the switch makes of all memories; a store that reaches all of them
//   alias_fence                between accesses of one memory by a multicast address and by its own
//
// sm_90 and newer alone. The accesses are relaxed at system scope, as no cache may hold what another GPU has written; order
// comes from the flags and barriers of simple.h, like that of plain data. A flag says that the chunk is in one rank's
// memory, so who reads a sum has acquired the flags of all. Memory has two addresses here, its own, by which a rank fills
// and empties its slot, and the multicast one. PTX orders accesses by different addresses of one memory only if an
// alias_fence lies on the causality order between them: it stands between the barrier behind the data and the flag.
//
// What the hardware adds up is in kSwitchAdds: f16 and bf16, in f32 and rounded once, f32, f64, integers of 32 and 64 bits;
// largest and smallest of all of these but f32 and f64. No products, no bytes. The order of a sum is the switch's.
#pragma once
#include "collc/cuda/reduce.h"

namespace collc::cuda {

template <class T, class Op>
constexpr bool kSwitchAdds =
    Op::kind == Reduction::kSum ? sizeof(T) != 1
                                : Op::kind != Reduction::kProd && (kIsInteger<T> ? sizeof(T) >= 4 : sizeof(T) == 2);

}  // namespace collc::cuda

#if defined(COLLC_EMULATION)
#include COLLC_EMULATED_MULTIMEM
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace collc::cuda {

#define COLLC_SWITCH_SUM_4(sort)                                                            \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." sort " {%0, %1, %2, %3}, [%4];"     \
               : "=r"(got.word[0]), "=r"(got.word[1]), "=r"(got.word[2]), "=r"(got.word[3]) \
               : "l"(at)                                                                    \
               : "memory")
#define COLLC_SWITCH_SUM_1(sort)                                                                                               \
  _Pragma("unroll") for (uint32_t k = 0; k < 4; ++k) asm volatile("multimem.ld_reduce.relaxed.sys.global." sort " %0, [%1];" : \
                                                                  "=r"(got.word[k]) : "l"(at + 4 *k) : "memory")
#define COLLC_SWITCH_SUM_2(sort)                                                                                        \
  _Pragma("unroll") for (uint32_t k = 0; k < 2; ++k) {                                                                  \
    uint64_t both;                                                                                                      \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." sort " %0, [%1];" : "=l"(both) : "l"(at + 8 * k) : "memory"); \
    got.word[2 * k] = static_cast<uint32_t>(both);                                                                      \
    got.word[2 * k + 1] = static_cast<uint32_t>(both >> 32);                                                            \
  }

// Where integers are concerned, Op is the sum or the largest, and `flip` says which order is meant (Launch::flip): no bit
// turned over is that of unsigned ones, the sign's that of signed ones; the complements of both ask for the smallest.
template <class T, class Op>
COLLC_DEVICE Pack switch_sum(const Pack *from, [[maybe_unused]] uint64_t flip) {
  static_assert(kSwitchAdds<T, Op>);
  const uint64_t at = __cvta_generic_to_global(from);
  Pack got{};
  if constexpr (kSame<T, Half>) {
    if constexpr (Op::kind == Reduction::kSum) COLLC_SWITCH_SUM_4("add.acc::f32.v4.f16x2");
    if constexpr (Op::kind == Reduction::kMax) COLLC_SWITCH_SUM_4("max.v4.f16x2");
    if constexpr (Op::kind == Reduction::kMin) COLLC_SWITCH_SUM_4("min.v4.f16x2");
  } else if constexpr (kSame<T, Bfloat16>) {
    if constexpr (Op::kind == Reduction::kSum) COLLC_SWITCH_SUM_4("add.acc::f32.v4.bf16x2");
    if constexpr (Op::kind == Reduction::kMax) COLLC_SWITCH_SUM_4("max.v4.bf16x2");
    if constexpr (Op::kind == Reduction::kMin) COLLC_SWITCH_SUM_4("min.v4.bf16x2");
  } else if constexpr (kSame<T, float>) {
    COLLC_SWITCH_SUM_4("add.v4.f32");
  } else if constexpr (kSame<T, double>) {
    COLLC_SWITCH_SUM_2("add.f64")
  } else if constexpr (Op::kind == Reduction::kSum) {
    if constexpr (sizeof(T) == 4) {
      COLLC_SWITCH_SUM_1("add.u32");
    } else {
      COLLC_SWITCH_SUM_2("add.u64")
    }
  } else if constexpr (sizeof(T) == 4) {
    const bool smallest = (flip & 1) != 0, is_signed = ((flip >> 31 & 1) != 0) != smallest;
    if (is_signed && smallest)
      COLLC_SWITCH_SUM_1("min.s32");
    else if (is_signed)
      COLLC_SWITCH_SUM_1("max.s32");
    else if (smallest)
      COLLC_SWITCH_SUM_1("min.u32");
    else
      COLLC_SWITCH_SUM_1("max.u32");
  } else {
    const bool smallest = (flip & 1) != 0, is_signed = ((flip >> 63) != 0) != smallest;
    if (is_signed && smallest) {
      COLLC_SWITCH_SUM_2("min.s64")
    } else if (is_signed) {
      COLLC_SWITCH_SUM_2("max.s64")
    } else if (smallest) {
      COLLC_SWITCH_SUM_2("min.u64")
    } else {
      COLLC_SWITCH_SUM_2("max.u64")
    }
  }
  return got;
}

COLLC_DEVICE void switch_store(Pack *to, const Pack &value) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}

COLLC_DEVICE void alias_fence() { asm volatile("fence.proxy.alias;" ::: "memory"); }

}  // namespace collc::cuda
#endif
