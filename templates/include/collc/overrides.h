// What a user may override of the tables for a communicator, the same on all ranks.
#pragma once
#include <cstdint>

namespace collc {

struct Overrides {
  static constexpr int32_t kSimple = 0;

  int32_t protocol = -1;     // COLLC_PROTO, of every call, as tables number protocols; -1: as the tables say, or by size
  uint32_t chunk_bytes = 0;  // COLLC_CHUNK; 0: as the tables say
  uint32_t channels = 0;     // COLLC_CHANNELS, at most; 0: as many as the tables say
};

}  // namespace collc
