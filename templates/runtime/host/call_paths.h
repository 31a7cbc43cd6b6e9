// Chooses the paths of the data of a call on the host target: past the caches or through them, in slots or copied by the
// kernel, one rank reducing or every rank. The thresholds that the ranks of a machine share decide (plan/thresholds.h), so
// these functions return the same on all ranks unless they say otherwise.
//
// Owner: HostRank. Threads: the one that makes calls. No call blocks.
#pragma once
#include <cstdint>
#include <vector>

#include "executor/backend.h"
#include "host/channel.h"

namespace collc {

// The paths of one call of a program.
struct CallPaths {
  bool streams = false;  // results that others need through slots or by the kernel are stored past the caches
  bool streams_in_place = false;  // the same in a call of a single copy
  bool streams_slots = false;  // slots are at first written past the caches
  bool is_pulled = false;  // a broadcast that the kernel copies at first
  bool sums_everywhere = false;
};

class PathChooser final : public ProgramChooser {
 public:
  PathChooser(const RankContext &context, const Neighbors &neighbors, const Distances &distances, bool cores_are_free)
      : context_(context), neighbors_(neighbors), distances_(distances), cores_are_free_(cores_are_free) {}
  // Must come after Neighbors::probe().
  void open(const Overrides &overrides);

  // Returns the paths of a call of a program.
  CallPaths choose_paths(const RunningCall &running, const Program &program) const;
  // Returns the most bytes of a chunk. `bytes`: of the output of the call.
  uint32_t max_chunk(const Program &program, uint64_t bytes) const;
  // Returns true if the times of a broadcast show whether the kernel should copy it.
  bool learns_pulls(const RunningCall &running) const;
  // Returns true if a call on buffers that all ranks see takes less time than FIFOs. `has_root`: one rank sends.
  bool gains_by_single_copy(const RunningCall &running, bool has_root) const;

  void adapt(Choices *choices) const override;
  const Program &choose(const Program &program, const Program &otherwise, uint64_t bytes) const override {
    return is_summed_everywhere(bytes) ? program : otherwise;
  }

  // Of two ranks: one of them has said in the last all_reduce that the other is far away. Calls choose their programs by that.
  bool agreed_far() const { return agreed_far_; }
  void set_agreed_far(bool is_far) { agreed_far_ = is_far; }
  // Returns true if each of two ranks receives something of the other in every such call. Then both know afterwards what both
  // have said of the distance. `shares`: of the program.
  bool exchanges(const Program &program, const std::vector<ShareRange> &shares) const;

 private:
  const Thresholds &thresholds() const { return neighbors_.thresholds().at(distances_.any_far()); }
  bool is_streamed(const RunningCall &running, bool through_slots) const;
  bool reduces_everywhere(const Program &program) const;
  bool is_summed_everywhere(uint64_t bytes) const;

  const RankContext &context_;
  const Neighbors &neighbors_;
  const Distances &distances_;
  const bool cores_are_free_;
  uint32_t chunk_limit_ = 0;  // bytes (COLLC_CHUNK); 0: as the program says
  bool is_protocol_forced_ = false;  // COLLC_PROTO: everything goes through FIFOs
  bool agreed_far_ = false;
};

}  // namespace collc
