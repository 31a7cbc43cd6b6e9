// Functions for multicast addresses: one address for the memories of all ranks at one offset, behind a switch (NVLS).
//   switch_sum, switch_store   16 bytes: the switch's sum over all memories; a store that reaches all memories
//   alias_fence                between accesses to one memory by a multicast address and by its own address
//
// Only on sm_90 and newer. The accesses are relaxed at system scope, because no cache may contain data that another GPU has
// written. The counters and barriers of simple.h order them, like plain data. A counter says that a chunk is in the memory of
// one rank, so a rank that reads a sum has acquired the counters of all ranks. Memory has two addresses here: its own, by
// which a rank fills and empties its slot, and the multicast address. PTX orders accesses to one memory by different
// addresses only if an alias_fence is on the causality order between them. It is executed between the barrier after the data
// and the store of the counter.
//
// kSwitchAdds says what the hardware can do: sums of f16 and bf16 (in f32, rounded once), f32, f64, and integers of 32 and 64
// bits; maxima and minima of all of these except f32 and f64. No products, no bytes. A sum has the switch's order.
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

// For integers, Op is the sum or the maximum, and `flip` selects the order (Launch::flip). No inverted bit means the order of
// unsigned integers, an inverted sign bit the order of signed integers; their complements mean the minimum.
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
