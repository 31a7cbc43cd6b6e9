// Every reduction of the host target beside one element at a time: types, operations, sources, destinations, ends of blocks
// and tiles, places in memory, stores past the caches, averages and scaled sums, destinations that are sources.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "host/reduce.h"
#include "host/reduce_types.h"

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
  Finish finish;
};

template <class E>
typename E::Value combined(ncclRedOp_t op, typename E::Value a, typename E::Value b) {
  switch (op) {
    case ncclSum:
      return E::add(a, b);
    case ncclProd:
      return E::multiply(a, b);
    case ncclMax:
      return a < b ? b : a;
    default:
      return b < a ? b : a;
  }
}

template <class E>
typename E::Storage expected(const Case &one, const std::vector<Buffer> &sources, uint64_t element) {
  using Storage = typename E::Storage;
  const auto operand = [&](uint32_t s) {
    Storage stored, scale;
    std::memcpy(&stored, sources[s].data() + one.shift + element * sizeof stored, sizeof stored);
    std::memcpy(&scale, one.finish.scale, sizeof scale);
    return one.finish.scaled == s ? E::multiply(E::load(stored), E::load(scale)) : E::load(stored);
  };
  typename E::Value value = operand(0);
  for (uint32_t s = 1; s < one.nsources; ++s) value = combined<E>(one.op, value, operand(s));
  if (one.finish.divisor != 1) value = E::divide(value, one.finish.divisor);
  return E::store(value);
}

// Whether the bits are the same. Which of two NaNs an addition returns is up to the compiler's order of operands.
template <class E>
bool same(typename E::Storage a, typename E::Storage b) {
  const auto x = E::load(a), y = E::load(b);
  return std::memcmp(&a, &b, sizeof a) == 0 || (x != x && y != y);
}

template <class E>
bool right(ReduceFunction function, const Case &one) {
  using Storage = typename E::Storage;
  const size_t bytes = one.elements * sizeof(Storage), room = one.shift + bytes + 64;
  std::vector<Buffer> sources, dests;
  for (uint32_t s = 0; s < one.nsources; ++s) {
    sources.emplace_back(room);
    for (size_t at = 0; at < room; ++at) sources[s].data()[at] = static_cast<char>(next_random() >> 32);
  }
  for (uint32_t d = 0; d < one.ndests; ++d) dests.emplace_back(room);
  std::vector<Storage> wanted(one.elements);
  for (uint64_t i = 0; i < one.elements; ++i) wanted[i] = expected<E>(one, sources, i);
  const void *from[kSources];
  void *to[kDests];
  for (uint32_t s = 0; s < one.nsources; ++s) from[s] = sources[s].data() + one.shift;
  for (uint32_t d = 0; d < one.ndests; ++d) to[d] = dests[d].data() + one.shift;
  if (one.in_place) to[0] = sources[one.nsources - 1].data() + one.shift;
  function(from, one.nsources, to, one.ndests, one.elements, one.finish);
  for (uint32_t d = 0; d < one.ndests; ++d) {
    for (uint64_t i = 0; i < one.elements; ++i) {
      Storage got;
      std::memcpy(&got, static_cast<char *>(to[d]) + i * sizeof got, sizeof got);
      if (!same<E>(got, wanted[i])) return false;
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
            Case one{op, nsources, 1 + way % kDests, elements, shift, way == 7, {}};
            if (way % 2 == 1) one.finish.streamed = 1 + way / 2 % one.ndests;
            if (op == ncclSum && way % 4 >= 2) one.finish.divisor = 3;
            if (op == ncclSum && way >= 4) one.finish.scaled = static_cast<uint32_t>(way) % nsources;
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
