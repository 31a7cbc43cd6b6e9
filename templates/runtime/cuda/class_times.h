// When the classes of links of a call had done their part at a rank, as its kernels tell in pinned host memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "collc/cuda/layout.h"
#include "cuda/device_plan.h"

namespace collc::cuda {

// The class of links of a step of a rank's channel: of all of them, where the program has the channels that its tables say.
inline uint32_t part_of(const DevicePlan &plan, uint32_t row, uint32_t rank, uint32_t channel, uint32_t step = 0) {
  const Program &program = plan.programs[row];
  const ChannelPlan &place = plan.channels[program.first_rank_channel + rank * program.nchannels + channel];
  return plan.shares[program.first_share + plan.steps[place.first_step + step].share].share.part;
}

enum class Told : uint32_t { kNotYet, kAll, kLost };

class ClassTimes {
 public:
  static constexpr size_t bytes(uint32_t nchannels) { return size_t{kTimesKept} * nchannels * sizeof(ChannelTime); }

  // `at`: bytes(nchannels) that the kernels write to.
  ClassTimes(const char *at, uint32_t nchannels)
      : times_(reinterpret_cast<const volatile ChannelTime *>(at)), nchannels_(nchannels) {}

  // Of row `row` of a plan, by the clock of the rank's GPU, from when its first channel began: 1, and later for classes that
  // carried something. Lost: a later call has written to the place.
  Told read(const DevicePlan &plan, uint32_t row, uint32_t rank, uint64_t call, uint64_t (&ended)[kClasses]) const {
    constexpr uint64_t kTime = (uint64_t{1} << kTimeBits) - 1;
    const Program &program = plan.programs[row];
    uint64_t begun = kTime;
    for (uint32_t c = 0; c < program.nchannels; ++c) {
      const ChannelPlan &place = plan.channels[program.first_rank_channel + rank * program.nchannels + c];
      if (place.nsteps == 0) continue;
      const volatile ChannelTime &one = times_[call % kTimesKept * nchannels_ + c];
      const uint64_t from = one.begun, to = one.ended;
      if (is_later(from >> kTimeBits, call)) return Told::kLost;
      if (from >> kTimeBits != tag(call) || to >> kTimeBits != tag(call)) return Told::kNotYet;
      begun = std::min(begun, from & kTime);
      uint64_t &last = ended[part_of(plan, row, rank, c)];
      last = std::max(last, to & kTime);
    }
    for (uint64_t &end : ended)
      if (end != 0) end = end > begun ? end - begun + 1 : 1;
    return Told::kAll;
  }

 private:
  static constexpr uint64_t tag(uint64_t call) { return call & ((uint64_t{1} << (64 - kTimeBits)) - 1); }

  static constexpr bool is_later(uint64_t one, uint64_t call) {
    const uint64_t ahead = tag(one - tag(call));
    return ahead != 0 && ahead <= tag(~uint64_t{0}) / 2;
  }

  const volatile ChannelTime *times_;
  uint32_t nchannels_;
};

}  // namespace collc::cuda
