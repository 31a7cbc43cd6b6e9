// The rows of a program in the tables on the device, and its part of a launch's arguments.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "collc/cuda/layout.h"
#include "collc/step_program.h"

namespace collc::cuda {

inline DeviceShare with_inverse(const Share &share) { return {share, ~uint64_t{0} / share.den}; }

// One channel of a rank in a plan: the range of its steps and references in the lists of all channels. Step::first_ref counts
// from `first_ref`.
struct ChannelPlan {
  uint32_t first_step;
  uint32_t nsteps;
  uint32_t first_ref;
  uint32_t nrefs;
  uint32_t variant;
};

// Where the rows of a program over a protocol are in every rank's tables, in units from the rank's state.
struct TablePlaces {
  uint32_t channels;
  uint32_t shares;
  uint32_t ends;
  CachedTables most;
};

// Returns the units for `bytes` of tables; the last unit is filled up.
constexpr uint32_t table_units(size_t bytes) { return static_cast<uint32_t>((bytes + kTableUnit - 1) / kTableUnit); }
// Returns the units of a channel with its steps and references.
constexpr uint32_t channel_units(const CachedTables &most) {
  return table_units(sizeof(DeviceChannel) + most.nsteps * sizeof(Step) + most.nrefs * sizeof(FifoRef));
}

// Writes the part of a launch's arguments for its program, row `number` of DevicePlan::programs.
inline void put_program(const Program &program, uint32_t number, const TablePlaces &places, bool cached, Launch *launch) {
  launch->program = number;
  launch->nchannels = program.nchannels;
  launch->channels_at = places.channels;
  launch->shares_at = places.shares;
  launch->ends_at = places.ends;
  launch->channel_units = channel_units(places.most);
  launch->most_steps = places.most.nsteps;
  launch->most_refs = places.most.nrefs;
  launch->nshares = program.nshares;
  launch->chunk_units = program.chunk_bytes / kUnitBytes;
  launch->chunk_inverse = ~uint64_t{0} / launch->chunk_units;
  launch->collective = static_cast<uint8_t>(program.collective);
  launch->cached = cached ? 1 : 0;
}

// Returns the most steps and references of any channel from `first` on.
inline CachedTables most_cached(const std::vector<ChannelPlan> &channels, size_t first) {
  CachedTables most{0, 0};
  for (size_t c = first; c < channels.size(); ++c) {
    most.nsteps = std::max(most.nsteps, channels[c].nsteps);
    most.nrefs = std::max(most.nrefs, channels[c].nrefs);
  }
  return most;
}

// Sets kOverwritten where a channel also reduces, into the output, the own input that a step of it sends.
inline void mark_overwritten(const ChannelPlan &channel, std::vector<Step> *steps) {
  const auto first = steps->begin() + channel.first_step, last = first + channel.nsteps;
  std::set<uint32_t> reduced;  // shares
  for (auto step = first; step != last; ++step)
    if (step->nrecv != 0 && (step->flags & kInput) != 0 && (step->flags & kOutput) != 0) reduced.insert(step->share);
  for (auto step = first; step != last; ++step)
    if (step->nrecv == 0 && step->nsend != 0 && reduced.count(step->share) != 0) step->flags |= kOverwritten;
}

// "" or why the kernels cannot run some step.
inline std::string what_kernels_lack(const std::vector<Step> &steps) {
  for (const Step &step : steps) {
    if (step.nrecv + step.nsend > kMaxPeers) return "a step of this plan has more than " + std::to_string(kMaxPeers) + " peers";
    // Simple puts the address of the rank's input between the addresses of the slots.
    if (step.input_at != 0 && (step.nsend != 0 || step.nrecv == kMaxPeers))
      return "a step of this plan sends on what it has reduced with its own input behind received chunks, which the kernels do "
             "not";
  }
  return "";
}

// Gives every channel the number of its variant (collc/cuda/specialised.h). `table`: of collc.codegen.specialise, null where a
// library has none written out.
inline void mark_variants(const uint32_t *table, const std::vector<Step> &steps, std::vector<ChannelPlan> *channels) {
  using Shape = std::vector<std::array<uint32_t, 4>>;
  if (table == nullptr) return;
  std::map<Shape, uint32_t> known;
  const uint32_t variants = *table++;
  for (uint32_t v = 0; v < variants; ++v) {
    Shape shape(*table++);
    for (auto &step : shape)
      for (uint32_t &word : step) word = *table++;
    known[shape] = v;
  }
  for (ChannelPlan &channel : *channels) {
    Shape shape;
    for (uint32_t s = channel.first_step; s < channel.first_step + channel.nsteps; ++s)
      shape.push_back({steps[s].lag, steps[s].flags & ~uint32_t{kOverwritten}, steps[s].nrecv, steps[s].nsend});
    const auto found = known.find(shape);
    if (found != known.end()) channel.variant = found->second;
  }
}

}  // namespace collc::cuda
