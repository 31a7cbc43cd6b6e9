#include "cuda/alone.h"

#include <cstddef>

#include "cuda/fill.h"

namespace collc::cuda {
namespace {

constexpr uint32_t kChunkBytes = 512 << 10;

// One channel for each share, one step for each channel: from the input to the output, which no FIFO takes part in.
struct AloneTables {
  RankState state;
  DeviceShare shares[kAloneChannels];
  struct alignas(kTableUnit) {
    DeviceChannel row;
    Step step;
  } channels[kAloneChannels];
  ChannelTicks ticks[kAloneChannels];  // for kernels that count
};

}  // namespace

const Program &alone_program() {
  static const Program program = [] {
    Program made = {};
    made.collective = Collective::kAllReduce;
    made.root = -1;
    made.nshares = made.nchannels = kAloneChannels;
    made.chunk_bytes = kChunkBytes;
    made.protocol = kSimple;
    return made;
  }();
  return program;
}

TablePlaces alone_places() {
  return {table_units(offsetof(AloneTables, channels)), table_units(offsetof(AloneTables, shares)), 0, {1, 0}};
}

Status make_alone(Address *state) {
  COLLC_RETURN_IF_FAILED(check(driver().allocate(state, sizeof(AloneTables)), "allocating GPU memory"));
  AloneTables tables = {};
  const Address ticks = *state + offsetof(AloneTables, ticks);
  tables.state.ticks = kernels_count() ? reinterpret_cast<ChannelTicks *>(ticks) : nullptr;
  tables.state.nranks = 1;
  for (uint32_t c = 0; c < kAloneChannels; ++c) {
    tables.shares[c] = with_inverse({c, c + 1, kAloneChannels, 0, 0});
    tables.channels[c] = {{1, kNoVariant}, {0, c, 0, 0, 0, kInput | kOutput | kFinal, 0}};
  }
  return alone("copying the plan to the GPU",
               [&](const Driver &cu, Stream stream) { return cu.upload_async(*state, &tables, sizeof tables, stream); });
}

}  // namespace collc::cuda
