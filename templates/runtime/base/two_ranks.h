// How data move between two ranks of one machine. `collc tune --machine` measures copies that move so (measure_copies.h).
#pragma once
#include <cstdint>

namespace collc {

// Of each slot: 2 MiB of a FIFO, more than the cache of a core. With more ranks a core goes through as much of several FIFOs.
constexpr uint32_t kPlaces = 4;

// A broadcast is cut into so many chunks, if they have that many bytes: the one reads while the other writes.
constexpr uint32_t kPipelined = 8, kLeastPipelined = 16 << 10;

}  // namespace collc
