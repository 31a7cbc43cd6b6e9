// The program of a communicator of one rank on its GPU: it multiplies a buffer by a factor. Its other collectives are copies.
#pragma once
#include "collc/tables.h"
#include "cuda/device.h"
#include "cuda/launch_rows.h"

namespace collc::cuda {

constexpr uint32_t kAloneChannels = 16;  // of its program

const Program &alone_program();
TablePlaces alone_places();

// On the current device. `state`: the first byte of the memory, where kernels find the rest.
Status make_alone(Address *state);

}  // namespace collc::cuda
