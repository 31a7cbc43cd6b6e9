// How large chunks and slots of a protocol are.
#pragma once
#include <algorithm>
#include <cstdint>

#include "collc/cuda/layout.h"
#include "collc/tables.h"
#include "plan/overrides.h"

namespace collc::cuda {

// Bytes of a chunk for protocols that the tables do not mention.
constexpr uint32_t kLLChunk = 16 << 10, kLL128Chunk = 120 << 10;

// Bytes of a slot for chunks of `chunk_bytes`. LL: a flag for every 4 bytes; LL128: 1,024 bytes hold 960 (a stripe of
// ll128.h; the slots of warps with fewer lanes are smaller).
constexpr uint32_t slot_bytes_for(uint32_t protocol, uint32_t chunk_bytes) {
  return protocol == kLL      ? 2 * chunk_bytes
         : protocol == kLL128 ? (chunk_bytes + 959) / 960 * 1024
                              : (chunk_bytes + 127) / 128 * 128;
}

// Slots of halves have the size that the tables say: for chunks of `most`, if it is not 0.
inline uint32_t chunk_for(const Program &program, uint32_t protocol, const Overrides &overrides, uint32_t most) {
  uint32_t chunk = overrides.chunk_bytes;
  if (chunk == 0 && (protocol == program.protocol || protocol == kSimple)) chunk = program.chunk_bytes;
  if (chunk == 0) chunk = std::min(program.chunk_bytes, protocol == kLL ? kLLChunk : kLL128Chunk);
  return most == 0 ? chunk : std::min(chunk, most);
}

}  // namespace collc::cuda
