// The tables that the blocks of a rank read, as one piece of its GPU's memory: its state, its channels of all programs, all
// shares, its connectors by protocol. Each channel has the room of the largest channel of its program on any rank, and each
// protocol the room of the rank with the most connectors, so that everything is at the same place in the memory of every rank.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/device_plan.h"

namespace collc::cuda {

// Returns true if all channels of a row of the plan's programs are written out.
inline bool is_written(const DevicePlan &plan, uint32_t row) {
  const auto first = plan.channels.begin() + plan.programs[row].first_rank_channel;
  return std::all_of(first, first + plan.nranks * plan.programs[row].nchannels,
                     [](const ChannelPlan &c) { return c.nsteps == 0 || c.variant != kNoVariant; });
}

struct alignas(kTableUnit) TableUnit {
  char bytes[kTableUnit];
};
using RankTables = std::vector<TableUnit>;

// The first units of the ends over a protocol: whole lines, for they change while all else is only read.
inline uint32_t ends_at(const DevicePlan &plan, uint32_t protocol) {
  constexpr uint32_t kLine = kFlagBytes / kTableUnit;
  const uint32_t behind = plan.shares_at + table_units(plan.shares.size() * sizeof(DeviceShare));
  size_t most = 0;
  for (const std::vector<EndPlace> &ends : plan.ends) most = std::max(most, ends.size());
  return (behind + kLine - 1) / kLine * kLine + protocol * table_units(most * sizeof(FifoEnd));
}

// Returns the places of row `row` of the plan's programs.
inline TablePlaces places_of(const DevicePlan &plan, uint32_t row) {
  const Program &program = plan.programs[row];
  return {plan.channels_at[row], plan.shares_at + table_units(program.first_share * sizeof(DeviceShare)),
          ends_at(plan, program.protocol), plan.cached[row]};
}

// `ends`: as DevicePlan::make_ends makes them.
inline RankTables make_tables(const DevicePlan &plan, uint32_t rank, const RankState &state, const std::vector<FifoEnd> &ends) {
  const size_t own = ends.size() / kProtocols;
  RankTables tables(ends_at(plan, kProtocols - 1) + table_units(own * sizeof(FifoEnd)));
  const auto put = [&](size_t at, const void *rows, size_t bytes) {
    if (bytes != 0) std::memcpy(&tables[at], rows, bytes);
    return at + bytes / kTableUnit;
  };
  put(0, &state, sizeof state);
  for (uint32_t row = 0; row < plan.programs.size(); row += kProtocols) {
    const Program &program = plan.programs[row];
    const CachedTables &most = plan.cached[row];
    for (uint32_t c = 0; c < program.nchannels; ++c) {
      const ChannelPlan &channel = plan.channels[program.first_rank_channel + rank * program.nchannels + c];
      const DeviceChannel made{channel.nsteps, channel.variant};
      size_t at = put(plan.channels_at[row] + c * channel_units(most), &made, sizeof made);
      put(at, plan.steps.data() + channel.first_step, channel.nsteps * sizeof(Step));
      std::vector<FifoRef> refs(most.nrefs, FifoRef{kNoEnd, 0});
      std::copy_n(plan.refs.begin() + channel.first_ref, channel.nrefs, refs.begin());
      put(at + table_units(most.nsteps * sizeof(Step)), refs.data(), refs.size() * sizeof(FifoRef));
    }
  }
  put(plan.shares_at, plan.shares.data(), plan.shares.size() * sizeof(DeviceShare));
  for (uint32_t protocol = 0; protocol < kProtocols; ++protocol)
    put(ends_at(plan, protocol), ends.data() + protocol * own, own * sizeof(FifoEnd));
  return tables;
}

}  // namespace collc::cuda
