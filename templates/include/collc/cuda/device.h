// The device verbs: everything that the kernels need from the GPU.
//   thread_index, thread_count, block_index, shared_memory     the position of a thread
//   flag_poll, flag_acquire                                    a relaxed load of a counter; an acquire of the value that it has seen
//   flag_store                                                 release at system scope: a chunk has been written
//   free_slot                                                  relaxed: a slot has been read
//   tell_bytes                                                 relaxed: a word for proxy threads that is valid by itself
//   barrier, barrier_or                                        all threads of the block
//   host_load, host_store                                      words in pinned host memory
//   backoff, clock_ns                                          for waits
//   look_mark, backoff_since                                   for waits for several flags
//   ticks, tally_memory                                        only with COLLC_COUNTERS (tally.h)
//   load, store                                                16 bytes, 8 bytes or one element; plain accesses
//   ll_load, ll_store                                          8 bytes of data with two flags; several loads at once
//   ll128_load, ll128_store, warp_any                          by a whole warp: lines of 128 bytes with a flag each
//   half and bfloat16 arithmetic                               rounded once per operation
//   spread_signs                                               the sign of each byte in a word
//
// Memory order. Data are moved by plain accesses. On the writing side, a flag_store (release) after a barrier orders them. On
// the reading side, the thread whose flag_poll saw the counter executes one flag_acquire before a barrier. PTX's causality
// order goes through both barriers, so no other fence is needed. Polls do not invalidate caches; the acquire at the end of a
// wait does. Other devices write slots while the kernel runs, so slots must never be read through __ldg or const
// __restrict__.
//
// Freeing a slot publishes no data: it must only be certain that the reads of the slot are over before its writer stores
// there. So free_slot is relaxed, and the writer that waits for it (flag_poll only) needs no acquire:
// - Each value that was loaded from the slot is an operand of a store or a comparison before the barrier. That instruction
//   cannot issue before the value has come, and the barrier cannot be passed before it. So no read is pending when free_slot
//   issues.
// - The writer's stores into the slot follow a branch on the counter and a barrier, and no GPU shows a store to others before
//   the branches and barriers before it are decided.
// PTX's axioms do not prove this case: they do not forbid load buffering through a barrier if one side has no release. The
// code relies on the way in which GPUs issue instructions; NCCL's receivers rely on the same. This holds only for slots: a
// counter that announces data must be stored by flag_store.
//
// Pascal (sm_60) has no acquire, no release and no independent scheduling of lanes. There, flags are volatile, a system fence
// precedes each flag_store and serves as flag_acquire, data are read past the first-level cache, and no lane may wait for a
// lane of its own warp.
//
// The tests run the kernels on a CPU: COLLC_EMULATION names a header that replaces this one.
#pragma once
#include <cstdint>

#if defined(COLLC_EMULATION)
#include COLLC_EMULATION
#else

#define COLLC_DEVICE __device__ __forceinline__
#define COLLC_DEVICE_CALLED __device__ __noinline__
#define COLLC_FUNCTION COLLC_DEVICE
#define COLLC_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define COLLC_PRE_VOLTA 1
#define COLLC_KERNEL_ARGUMENT(type) const type
#else
#define COLLC_KERNEL_ARGUMENT(type) const __grid_constant__ type
#endif

namespace collc::cuda {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kSpinsPerLook = 256;  // polls between two loads of the abort flag, which is in host memory

struct alignas(16) Pack {
  uint32_t word[4];
};
struct alignas(8) Duo {
  uint32_t word[2];
};
struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

COLLC_DEVICE uint32_t thread_index() { return threadIdx.x; }
COLLC_DEVICE uint32_t thread_count() { return blockDim.x; }
COLLC_DEVICE uint32_t block_index() { return blockIdx.x; }
COLLC_DEVICE char *shared_memory() {
  extern __shared__ __align__(16) char bytes[];
  return bytes;
}

#if defined(COLLC_PRE_VOLTA)
COLLC_DEVICE uint64_t flag_poll(const uint64_t *flag) {
  uint64_t value;
  asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
  return value;
}
COLLC_DEVICE void flag_acquire(const uint64_t *) { __threadfence_system(); }
COLLC_DEVICE void free_slot(uint64_t *flag, uint64_t value) {
  asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "l"(value) : "memory");
}
COLLC_DEVICE void flag_store(uint64_t *flag, uint64_t value) {
  __threadfence_system();
  free_slot(flag, value);
}
#else
COLLC_DEVICE uint64_t flag_poll(const uint64_t *flag) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
  return value;
}
// Executed after a poll: an acquire load of the same counter. The counter only grows, so this reads from that store or a
// later one of the same writer. The value is unused, so ptxas omits the load and keeps its effect as an acquire: it
// invalidates the first-level cache, without waiting. (A fence.acq_rel would wait until this thread's stores have arrived
// everywhere. fence.acquire, which does not, exists from sm_90 on and compiles to the same code.)
COLLC_DEVICE void flag_acquire(const uint64_t *flag) {
  [[maybe_unused]] uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
}
COLLC_DEVICE void free_slot(uint64_t *flag, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "l"(value) : "memory");
}
COLLC_DEVICE void flag_store(uint64_t *flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "l"(value) : "memory");
}
#endif

COLLC_DEVICE void tell_bytes(uint64_t *word, uint64_t value) { free_slot(word, value); }

COLLC_DEVICE void barrier() { __syncthreads(); }
COLLC_DEVICE bool barrier_or(bool mine) { return __syncthreads_or(mine); }

#if defined(COLLC_PRE_VOLTA)
COLLC_DEVICE uint32_t host_load(const uint32_t *word) {
  uint32_t value;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
  return value;
}
COLLC_DEVICE void host_store(uint32_t *word, uint32_t value) {
  __threadfence_system();
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "r"(value) : "memory");
}
COLLC_DEVICE void backoff(uint32_t) {}
#else
COLLC_DEVICE uint32_t host_load(const uint32_t *word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
  return value;
}
COLLC_DEVICE void host_store(uint32_t *word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "r"(value) : "memory");
}

// A flag mostly comes within a few round trips to the second-level cache, so only long waits sleep.
COLLC_DEVICE void backoff(uint32_t spins) {
  if (spins > 4096) __nanosleep(128);
}
#endif
COLLC_DEVICE uint64_t look_mark() { return 0; }
COLLC_DEVICE void backoff_since(uint64_t, uint32_t spins) { backoff(spins); }
COLLC_DEVICE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

#if defined(COLLC_COUNTERS)
constexpr uint32_t kTallyBytes = 64;
// Returns the clock of the multiprocessor. It is finer than globaltimer, which on many GPUs advances only once per
// microsecond.
COLLC_DEVICE uint64_t ticks() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}
COLLC_DEVICE char *tally_memory() {
  __shared__ __align__(16) char bytes[kTallyBytes];
  return bytes;
}
#endif

#if defined(COLLC_PRE_VOLTA)
COLLC_DEVICE Pack load(const Pack *from) {
  Pack got;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(got.word[0]), "=r"(got.word[1]), "=r"(got.word[2]), "=r"(got.word[3])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return got;
}
#else
COLLC_DEVICE Pack load(const Pack *from) {
  __builtin_assume(__isGlobal(from));
  const uint4 got = *reinterpret_cast<const uint4 *>(from);
  return Pack{{got.x, got.y, got.z, got.w}};
}
#endif
COLLC_DEVICE void store(Pack *to, const Pack &value) {
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<uint4 *>(to) = make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
}
COLLC_DEVICE Duo load(const Duo *from) {
  __builtin_assume(__isGlobal(from));
#if defined(COLLC_PRE_VOLTA)
  const uint64_t got = *reinterpret_cast<const volatile uint64_t *>(from);
  return Duo{{static_cast<uint32_t>(got), static_cast<uint32_t>(got >> 32)}};
#else
  const uint2 got = *reinterpret_cast<const uint2 *>(from);
  return Duo{{got.x, got.y}};
#endif
}
COLLC_DEVICE void store(Duo *to, const Duo &value) {
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<uint2 *>(to) = make_uint2(value.word[0], value.word[1]);
}
template <class T>
COLLC_DEVICE T load(const T *from) {
  __builtin_assume(__isGlobal(from));
#if defined(COLLC_PRE_VOLTA)
  if constexpr (sizeof(T) == 2) {
    return T{*reinterpret_cast<const volatile uint16_t *>(from)};
  } else {
    return *static_cast<const volatile T *>(from);
  }
#else
  return *from;
#endif
}
template <class T>
COLLC_DEVICE void store(T *to, T value) {
  __builtin_assume(__isGlobal(to));
  *to = value;
}
// nvcc 13.0 fails on __isGlobal of a structure of one byte. Whole packs use the functions above.
COLLC_DEVICE E4m3 load(const E4m3 *from) { return {*reinterpret_cast<const volatile uint8_t *>(from)}; }
COLLC_DEVICE E5m2 load(const E5m2 *from) { return {*reinterpret_cast<const volatile uint8_t *>(from)}; }
COLLC_DEVICE void store(E4m3 *to, E4m3 value) { to->bits = value.bits; }
COLLC_DEVICE void store(E5m2 *to, E5m2 value) { to->bits = value.bits; }

// LL: words of 4 bytes, data and flag in turn. Each half, {data, flag}, is one access of 8 bytes, which is never split. The
// two halves may arrive separately, so both flags are checked. A flag proves that its data are there, so no order with other
// accesses is needed: all are relaxed.
constexpr uint32_t kLLFlags = 0xffffffffu;  // bits of a flag

COLLC_DEVICE void ll_access(const Pack *from, uint64_t &low, uint64_t &high) {
#if defined(COLLC_PRE_VOLTA)
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
#else
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
#endif
               : "=l"(low), "=l"(high)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
}
COLLC_DEVICE void ll_access(Pack *to, uint64_t low, uint64_t high) {
#if defined(COLLC_PRE_VOLTA)
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "l"(low), "l"(high)
#else
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "l"(low), "l"(high)
#endif
               : "memory");
}

// Loads N lines; all loads are in flight before the first flag is checked. Returns a bit for each line whose halves both
// carry its flag.
template <uint32_t N>
COLLC_DEVICE uint32_t ll_load(const Pack *const (&from)[N], const uint32_t (&flag)[N], Duo (&data)[N]) {
  uint64_t low[N], high[N];
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) ll_access(from[k], low[k], high[k]);
  uint32_t there = 0;
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) {
    data[k] = Duo{{static_cast<uint32_t>(low[k]), static_cast<uint32_t>(high[k])}};
    if (low[k] >> 32 == flag[k] && high[k] >> 32 == flag[k]) there |= 1u << k;
  }
  return there;
}
COLLC_DEVICE void ll_store(Pack *to, const Duo &data, uint32_t flag) {
  const uint64_t high = static_cast<uint64_t>(flag) << 32;
  ll_access(to, high | data.word[0], high | data.word[1]);
}

#if !defined(COLLC_PRE_VOLTA)
// LL128: lines of 128 bytes. Each belongs to kLineLanes neighboring lanes; the upper half of the last lane's pack is the
// flag. All lanes of a warp call these functions together. NVLink and GPU memory keep a line in one piece if one instruction
// of a warp stores it, so a reader that sees the flag sees the data. PCIe does not. (Sources: NCCL allows LL128 on NVLink
// only, from sm_70 on; Hu et al., "Demystifying NCCL", arXiv 2507.04786, section III.)
constexpr uint32_t kLineLanes = 8;

// Loads N x kWarp packs from `lines` on. Returns true, for all lanes, if every line carries the flag. The lanes synchronize
// first, so that one instruction reads a line: a lane that read its part before the lane with the flag might get old data.
template <uint32_t N>
COLLC_DEVICE bool ll128_load(const Pack *lines, uint64_t flag, Pack (&value)[N]) {
  const uint32_t lane = threadIdx.x % kWarp;
  uint64_t low[N], high[N];
  __syncwarp();
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) ll_access(lines + k * kWarp + lane, low[k], high[k]);
  bool there = true;
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) {
    there &= lane % kLineLanes != kLineLanes - 1 || high[k] == flag;
    value[k] = Pack{{static_cast<uint32_t>(low[k]), static_cast<uint32_t>(low[k] >> 32), static_cast<uint32_t>(high[k]),
                     static_cast<uint32_t>(high[k] >> 32)}};
  }
  return __all_sync(0xffffffffu, there);
}
// Stores N x kWarp packs. The packs of flag lanes already contain the flag.
template <uint32_t N>
COLLC_DEVICE void ll128_store(Pack *lines, const Pack (&value)[N]) {
  const uint32_t lane = threadIdx.x % kWarp;
  __syncwarp();
#pragma unroll
  for (uint32_t k = 0; k < N; ++k)
    ll_access(lines + k * kWarp + lane, static_cast<uint64_t>(value[k].word[1]) << 32 | value[k].word[0],
              static_cast<uint64_t>(value[k].word[3]) << 32 | value[k].word[2]);
}
COLLC_DEVICE bool warp_any(bool mine) { return __any_sync(0xffffffffu, mine); }
#endif

COLLC_DEVICE float to_float(Half value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
COLLC_DEVICE Half to_half(float value) {
  Half narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
  return narrow;
}
COLLC_DEVICE float to_float(Bfloat16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }
COLLC_DEVICE Bfloat16 to_bfloat16(float value) {
  Bfloat16 narrow;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
#else
  const uint32_t bits = __float_as_uint(value);
  narrow.bits = value != value ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
#endif
  return narrow;
}

template <class T>
COLLC_DEVICE T bits_to(uint32_t bits);
template <>
COLLC_DEVICE uint32_t bits_to<uint32_t>(uint32_t bits) {
  return bits;
}
template <>
COLLC_DEVICE float bits_to<float>(uint32_t bits) {
  return __uint_as_float(bits);
}
template <class T>
COLLC_DEVICE T bits_to(uint64_t bits);
template <>
COLLC_DEVICE uint64_t bits_to<uint64_t>(uint64_t bits) {
  return bits;
}
template <>
COLLC_DEVICE double bits_to<double>(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
COLLC_DEVICE uint32_t to_bits(uint32_t value) { return value; }
COLLC_DEVICE uint32_t to_bits(float value) { return __float_as_uint(value); }
COLLC_DEVICE uint64_t to_bits(uint64_t value) { return value; }
COLLC_DEVICE uint64_t to_bits(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }

// PTX's max and min: a NaN loses, +0 is larger than -0, subnormal numbers stay. For two NaNs, f32 gives the canonical NaN,
// 0x7fffffff; PTX does not define it for f64, so it is produced here.
COLLC_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
COLLC_DEVICE float smaller(float a, float b) { return fminf(a, b); }
COLLC_DEVICE double with_canonical_nan(double value) { return value == value ? value : bits_to<double>(~uint64_t{0} >> 1); }
COLLC_DEVICE double larger(double a, double b) { return with_canonical_nan(fmax(a, b)); }
COLLC_DEVICE double smaller(double a, double b) { return with_canonical_nan(fmin(a, b)); }

// Returns 0xff for every byte whose highest bit is set, 0 for the others.
COLLC_DEVICE uint32_t spread_signs(uint32_t word) {
  uint32_t spread;
  asm("prmt.b32 %0, %1, %1, 0xba98;" : "=r"(spread) : "r"(word));
  return spread;
}

}  // namespace collc::cuda
#endif
