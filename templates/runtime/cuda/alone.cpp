#include "cuda/alone.h"

#include <cstddef>

#include "cuda/fill.h"

namespace collc::cuda {
namespace {

constexpr uint32_t kChunkBytes = 512 << 10;

// One channel for each share, one step for each channel: from the input to the output, which no FIFO takes part in.
struct AloneTables {
  RankState state;
  Program program;
  Share shares[kAloneChannels];
  RankChannel channels[kAloneChannels];
  Step steps[kAloneChannels];
  ChannelTicks ticks[kAloneChannels];  // for kernels that count
};

template <class T>
T *at(Address first, size_t offset) {
  return reinterpret_cast<T *>(first + offset);
}

}  // namespace

Status make_alone(Address *state) {
  COLLC_RETURN_IF_FAILED(check(driver().allocate(state, sizeof(AloneTables)), "allocating GPU memory"));
  AloneTables tables = {};
  tables.state.programs = at<Program>(*state, offsetof(AloneTables, program));
  tables.state.shares = at<Share>(*state, offsetof(AloneTables, shares));
  tables.state.rank_channels = at<RankChannel>(*state, offsetof(AloneTables, channels));
  tables.state.steps = at<Step>(*state, offsetof(AloneTables, steps));
  tables.state.ticks = kernels_count() ? at<ChannelTicks>(*state, offsetof(AloneTables, ticks)) : nullptr;
  tables.state.nranks = 1;
  tables.program.collective = Collective::kAllReduce;
  tables.program.root = -1;
  tables.program.nshares = tables.program.nchannels = kAloneChannels;
  tables.program.chunk_bytes = kChunkBytes;
  tables.program.protocol = kSimple;
  for (uint32_t c = 0; c < kAloneChannels; ++c) {
    tables.shares[c] = {c, c + 1, kAloneChannels, 0};
    tables.channels[c] = {c, 1};
    tables.steps[c] = {0, c, 0, 0, 0, kInput | kOutput | kFinal, 0};
  }
  return alone("copying the plan to the GPU",
               [&](const Driver &cu, Stream stream) { return cu.upload_async(*state, &tables, sizeof tables, stream); });
}

}  // namespace collc::cuda
