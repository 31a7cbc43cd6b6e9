// Every reduction of the host target beside one element at a time: types, operations, sources, destinations, ends of blocks
// and tiles, places in memory, stores past the caches, quotients and scaled sums, destinations that are sources. Half of the
// elements are zeros, NaN of any payload, infinities, and numbers around the smallest and the largest ones. Every other case runs
// in a thread that flushes denormals to zero.
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/number_types.h"
#include "host/reduce.h"

namespace collc {
namespace baseline {
ReduceFunction find(ncclDataType_t type, ncclRedOp_t op);
}
#if defined(__x86_64__)
namespace v3 {
ReduceFunction find(ncclDataType_t type, ncclRedOp_t op);
}
#endif

namespace {

uint64_t state = 88172645463325252u;
uint64_t next_random() {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

constexpr uint32_t kSources = 4, kDests = 3;

// Memory that begins with a cache line: stores past the caches go to destinations that are aligned alike.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : memory_(bytes + 64), at_((0 - reinterpret_cast<uintptr_t>(memory_.data())) & 63) {}
  char *data() { return memory_.data() + at_; }
  const char *data() const { return memory_.data() + at_; }

 private:
  std::vector<char> memory_;
  size_t at_;
};

struct Case {
  ncclRedOp_t op;
  uint32_t nsources, ndests;
  uint64_t elements;
  size_t shift;  // bytes, of all buffers
  bool in_place;
  bool flushes;
  Finish finish;
};

constexpr size_t kBits = 8;

template <class E>
constexpr bool kIsFloat = std::is_floating_point_v<typename E::Value>;

// All bits of a number but the sign's.
template <class E>
typename E::Storage canonical_nan() {
  using Bits = std::conditional_t<sizeof(typename E::Storage) == 8, uint64_t,
                                  std::conditional_t<sizeof(typename E::Storage) == 4, uint32_t, typename E::Storage>>;
  const auto bits = static_cast<Bits>((Bits{1} << (kBits * sizeof(Bits) - 1)) - 1);
  typename E::Storage nan;
  std::memcpy(&nan, &bits, sizeof nan);
  return nan;
}

// maximumNumber and minimumNumber of IEEE 754-2019, case by case.
template <class V>
V extreme(bool largest, V a, V b) {
  if constexpr (std::is_floating_point_v<V>) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == 0 && b == 0) return std::signbit(a) == largest ? b : a;
  }
  return (a < b) == largest ? b : a;
}

template <class E>
typename E::Value combined(ncclRedOp_t op, typename E::Value a, typename E::Value b) {
  if (op == ncclSum) return E::add(a, b);
  if (op == ncclProd) return E::multiply(a, b);
  return extreme(op == ncclMax, a, b);
}

template <class E>
typename E::Storage expected(const Case &one, const std::vector<Buffer> &sources, uint64_t element) {
  using Storage = typename E::Storage;
  const auto operand = [&](uint32_t s) {
    Storage stored, scale;
    std::memcpy(&stored, sources[s].data() + one.shift + element * sizeof stored, sizeof stored);
    std::memcpy(&scale, one.finish.scale, sizeof scale);
    return E::load(one.finish.scales(s) ? E::store(E::multiply(E::load(stored), E::load(scale))) : stored);
  };
  typename E::Value value = operand(0);
  for (uint32_t s = 1; s < one.nsources; ++s) value = combined<E>(one.op, value, operand(s));
  if constexpr (!kIsFloat<E>)
    if (one.finish.divisor != 1) value = E::divide(value, one.finish.divisor);
  if (one.op >= ncclMax && value != value) return canonical_nan<E>();
  return E::store(value);
}

// Returns true if the bits are equal. A sum of two NaN in f32 or f64 returns one of them; the compiler's operand order decides.
template <class E>
bool same(ncclRedOp_t op, typename E::Storage a, typename E::Storage b) {
  const auto x = E::load(a), y = E::load(b);
  const bool keeps_payloads = std::is_floating_point_v<typename E::Storage> && op < ncclMax;
  return std::memcmp(&a, &b, sizeof a) == 0 || (keeps_payloads && x != x && y != y);
}

// Returns one of the numbers for which reductions differ.
template <class E>
typename E::Storage special() {
  using Storage = typename E::Storage;
  constexpr size_t kSize = sizeof(Storage);
  uint64_t bits = next_random() >> 20;
  const Storage nan = canonical_nan<E>();
  uint64_t all = 0;
  std::memcpy(&all, &nan, kSize);
  const int mantissa = kSize == 8 ? 52 : kSize == 4 ? 23 : kSize == 1 ? 2 : std::is_same_v<E, Half> ? 10 : 7;
  const uint64_t fraction = (uint64_t{1} << mantissa) - 1, infinity = all & ~fraction;
  const uint64_t choices[] = {0,  1, fraction, fraction + 1, infinity, infinity - 1, infinity + 1, infinity | (bits & fraction),
                              all};
  const uint64_t sign = bits >> 40 & 1 ? all + 1 : 0;
  bits = choices[bits % (sizeof choices / sizeof *choices)] | sign;
  Storage stored;
  std::memcpy(&stored, &bits, kSize);
  return stored;
}

// Flushes denormals to zero and rounds toward it.
class Flushing {
 public:
  explicit Flushing(bool flushes) {
#if defined(__SSE2__)
    before_ = _mm_getcsr();
    if (flushes) _mm_setcsr(before_ | 0xe040);
#else
    if (flushes) std::fesetround(FE_TOWARDZERO);
#endif
  }
  ~Flushing() {
#if defined(__SSE2__)
    _mm_setcsr(before_);
#else
    std::fesetround(FE_TONEAREST);
#endif
  }
  Flushing(const Flushing &) = delete;
  Flushing &operator=(const Flushing &) = delete;

 private:
  [[maybe_unused]] uint32_t before_ = 0;
};

template <class E>
bool right(ReduceFunction function, const Case &one) {
  using Storage = typename E::Storage;
  const size_t bytes = one.elements * sizeof(Storage), room = one.shift + bytes + 64;
  std::vector<Buffer> sources, dests;
  for (uint32_t s = 0; s < one.nsources; ++s) {
    sources.emplace_back(room);
    for (size_t at = 0; at < room; ++at) sources[s].data()[at] = static_cast<char>(next_random() >> 32);
    for (uint64_t i = 0; kIsFloat<E> && i < one.elements; ++i) {
      const Storage value = special<E>();
      if (next_random() >> 40 & 1) std::memcpy(sources[s].data() + one.shift + i * sizeof value, &value, sizeof value);
    }
  }
  for (uint32_t d = 0; d < one.ndests; ++d) dests.emplace_back(room);
  std::vector<Storage> wanted(one.elements);
  for (uint64_t i = 0; i < one.elements; ++i) wanted[i] = expected<E>(one, sources, i);
  const void *from[kSources];
  void *to[kDests];
  for (uint32_t s = 0; s < one.nsources; ++s) from[s] = sources[s].data() + one.shift;
  for (uint32_t d = 0; d < one.ndests; ++d) to[d] = dests[d].data() + one.shift;
  if (one.in_place) to[0] = sources[one.nsources - 1].data() + one.shift;
  {
    const Flushing here(one.flushes);
    function(from, one.nsources, to, one.ndests, one.elements, one.finish);
  }
  for (uint32_t d = 0; d < one.ndests; ++d) {
    for (uint64_t i = 0; i < one.elements; ++i) {
      Storage got;
      std::memcpy(&got, static_cast<char *>(to[d]) + i * sizeof got, sizeof got);
      if (!same<E>(one.op, got, wanted[i])) return false;
    }
    if (one.in_place && d == 0) continue;
    for (size_t at = 0; at < room; ++at)  // nothing beside the result
      if ((at < one.shift || at >= one.shift + bytes) && dests[d].data()[at] != 0) return false;
  }
  return true;
}

uint64_t cases = 0;

template <class E>
int check(const char *set, ncclDataType_t type, ReduceFunction (*find)(ncclDataType_t, ncclRedOp_t)) {
  for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin})
    for (uint32_t nsources = 1; nsources <= kSources; ++nsources)
      for (const uint64_t elements : {0, 1, 3, 31, 33, 200, 1023, 1024, 1025, 2100})
        for (const size_t shift : {size_t{0}, sizeof(typename E::Storage), size_t{40}})
          for (int way = 0; way < 8; ++way) {
            Case one{op, nsources, 1 + way % kDests, elements, shift, way == 7, cases % 2 == 1, {}};
            bool is_scaled[kSources];
            for (bool &scaled : is_scaled) scaled = next_random() >> 40 & 1;
            if (way % 2 == 1) one.finish.streamed = 1 + way / 2 % one.ndests;
            if (op == ncclSum && way % 4 >= 2 && !kIsFloat<E>) one.finish.divisor = 3;
            if (op == ncclSum && way >= 4) one.finish.is_scaled = is_scaled;
            for (auto &byte : one.finish.scale) byte = static_cast<unsigned char>(next_random() >> 32);
            ++cases;
            if (right<E>(find(type, op), one)) continue;
            std::printf("%s: type %d op %d sources %u dests %u elements %llu shift %zu way %d\n", set, type, op, nsources,
                        one.ndests, static_cast<unsigned long long>(elements), shift, way);
            return 1;
          }
  return 0;
}

int check_set(const char *set, ReduceFunction (*find)(ncclDataType_t, ncclRedOp_t)) {
  return check<Integer<int8_t>>(set, ncclInt8, find) + check<Integer<uint8_t>>(set, ncclUint8, find) +
         check<Integer<int32_t>>(set, ncclInt32, find) + check<Integer<uint32_t>>(set, ncclUint32, find) +
         check<Integer<int64_t>>(set, ncclInt64, find) + check<Integer<uint64_t>>(set, ncclUint64, find) +
         check<Half>(set, ncclFloat16, find) + check<Real<float>>(set, ncclFloat32, find) +
         check<Real<double>>(set, ncclFloat64, find) + check<Bfloat16>(set, ncclBfloat16, find) +
         check<Fp8E4M3>(set, ncclFloat8e4m3, find) + check<Fp8E5M2>(set, ncclFloat8e5m2, find);
}

}  // namespace
}  // namespace collc

int main() {
  int wrong = collc::check_set("baseline", collc::baseline::find);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    wrong += collc::check_set("v3", collc::v3::find);
#endif
  std::printf("%llu cases, %d types wrong\n", static_cast<unsigned long long>(collc::cases), wrong);
  return wrong != 0;
}
