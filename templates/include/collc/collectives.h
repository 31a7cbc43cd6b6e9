// The collectives: rendered from collc/collectives/model.py by `make golden`. Do not edit.
#pragma once
#include <cstdint>

namespace collc {

// Their numbers stand in step tables.
enum class Collective : uint32_t {
  kAllReduce = 0,
  kAllGather = 1,
  kReduceScatter = 2,
  kBroadcast = 3,
  kReduce = 4,
  kGather = 5,
  kScatter = 6,
  kAllToAll = 7,
  kSendRecv = 8,
};

constexpr uint32_t kCollectives = 9;

}  // namespace collc
