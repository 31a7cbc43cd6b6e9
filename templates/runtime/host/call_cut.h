// Cuts a call of a program into the ranges of its shares and the iterations of its channels, and remembers the last cut of each
// program: the same call again, as in training, computes nothing.
//
// Owner: HostRank. Threads: the one that makes calls. No call blocks.
#pragma once
#include <cstdint>
#include <vector>

#include "executor/backend.h"
#include "host/call_paths.h"
#include "host/channel.h"
#include "transport/single_copy.h"

namespace collc {

// A step that makes this rank compute or copy in a call of a single copy.
struct OwnStep {
  const Step *step;
  uint32_t channel;
};

struct CallCut {
  // The cut depends on these and on the program.
  uint64_t count = 0;
  uint32_t element_bytes = 0;
  uint32_t weights = 0;  // of the path classes
  bool any_far = false, agreed_far = false;

  std::vector<ShareRange> shares;
  std::vector<uint64_t> iterations;  // by channel
  CallPaths paths;
  bool exchanges = false;  // each of two ranks hears from the other
  bool reduces_what_it_sends = false;

  OneHop hop;  // of the program, if all ranks see all buffers
  std::vector<OwnStep> own_steps;  // of a program of one hop
  size_t nbefore = 0;  // steps that run before the rank reports that it has finished; the other steps need no peer
};

// Returns a rank's part of a channel of a program.
inline const RankChannel &rank_channel(const Tables &tables, const Program &program, uint32_t plan_rank, uint32_t channel) {
  return tables.rank_channels[program.first_rank_channel + plan_rank * program.nchannels + channel];
}

class CallCutter {
 public:
  explicit CallCutter(const RankContext &context) : context_(context) {
    if (context.placement.allocation != nullptr) cuts_.resize(context.placement.allocation->nprograms);
  }

  // Returns the number of a program in the allocation.
  size_t number_of(const Program &program) const {
    return static_cast<size_t>(&program - context_.tables->programs) - context_.placement.allocation->first_program;
  }
  // Returns the cut of the running call by `program`. `weights`: of the path classes. The reference is valid until the next
  // call of the program is cut.
  const CallCut &cut(const Program &program, uint32_t weights, const ChannelContext &shared, const PathChooser &chooser);

 private:
  void cut_shares(const Program &program, const RunningCall &running, uint32_t max_chunk, CallCut *cut) const;
  void find_own_steps(const Program &program, const ChannelContext &shared, CallCut *cut) const;
  bool reduces_what_it_sends(const Program &program) const;
  const RankChannel &channel_of(const Program &program, uint32_t channel) const {
    return rank_channel(*context_.tables, program, context_.plan_rank(), channel);
  }

  const RankContext &context_;
  std::vector<CallCut> cuts_;  // by program of the allocation
};

}  // namespace collc
