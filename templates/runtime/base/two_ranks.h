// Sizes of transfers between two ranks of one machine. `collc tune --machine` measures copies with the same sizes
// (measure_copies.h).
#pragma once
#include <cstdint>

namespace collc {

// Places of each slot of a FIFO, used in turn. FIFOs between two ranks thus span 2 MiB, more than the cache of a core. With
// more ranks, a core moves about as much memory through its several FIFOs without further places.
constexpr uint32_t kPlaces = 4;

// A broadcast is cut into kPipelined chunks; into fewer if a chunk would have less than kLeastPipelined bytes. The reader
// copies a chunk while the writer stores the next one.
constexpr uint32_t kPipelined = 8, kLeastPipelined = 16 << 10;

}  // namespace collc
