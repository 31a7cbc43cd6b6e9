// The state that the verbs of a channel work on: the running call, the channel, and the state that the channels of a rank
// share.
#pragma once
#include <cstdint>
#include <vector>

#include "collc/step_program.h"
#include "control/segment.h"
#include "host/throttle.h"
#include "host/reduce.h"
#include "plan/call.h"
#include "transport/fifo.h"
#include "transport/transfers.h"

namespace collc {

// The most peers of a step.
constexpr uint32_t kMostPeers = 256;
// From this size in bytes up, chunks may be sent as an address. For smaller chunks, waiting for readers costs more than a copy.
constexpr uint64_t kLeastByAddress = 4 << 10;
// If ranks share cores, the times of chunks show the cost of slots from this size in bytes up (transport/slot_ways.h).
constexpr uint64_t kLeastLearnt = 16 << 10;

// The current collective of a rank. HostRank writes it when the call begins, and the second group of fields when the program is
// chosen. The verbs read it.
struct RunningCall {
  const Call *call = nullptr;  // the last call that was begun
  uint32_t element_bytes = 1;
  uint64_t input_bytes = 0, output_bytes = 0;  // of this rank
  bool are_buffers_apart = true;  // input and output share no byte
  ncclDataType_t type = {};  // of `reduce`
  ncclRedOp_t operation = {};  // of `reduce`
  ReduceFunction reduce = nullptr;
  Finish finish;  // for steps that complete a reduction

  // Set with the program.
  const Program *program = nullptr;  // the call's program, or its alternative
  bool streams = false;  // the result is stored past the caches
  bool streams_slots = false;  // slots are at first written past the caches
  bool pulled = false;  // a broadcast that the kernel copies out of the root's memory, at first
  bool learns_pulls = false;  // a broadcast whose times show whether the kernel should copy it
  bool keeps_input = true;  // the chunks that are sent of the input stand until they are read
  bool awaits_fetching = false;  // keeps_input is false, and this rank overwrites its input once its readers have copied it
  bool sums_everywhere = false;  // an all_reduce that all ranks reduce themselves, of inputs that the kernel copies

  // True if the cores of the ranks are far apart, as this rank measures, or another rank that has sent a chunk of this call.
  bool says_far = false, hears_far = false;
};

// The progress of one channel of the running call. FifoCall and the verbs of the channel write it.
struct ChannelState {
  const Step *steps = nullptr;
  uint32_t nsteps = 0;
  uint64_t iterations = 0;
  Cursor at = {};
  bool done = true;
  uint32_t blocked_on = 0;  // plan rank that the channel waits for
  uint64_t chunk = 0;  // that it waits for
  uint64_t busy_ns = 0;  // of this call
  uint32_t part = 0;  // the class of its links, where the program is cut into classes
};

// The state that all channels of a rank share. Owner: HostRank. One thread at a time uses it: the one that makes the calls.
struct ChannelContext {
  Segment &segment;
  uint32_t rank;
  const std::vector<uint32_t> &nccl_rank;  // by plan rank
  const FifoRef *refs;
  bool cores_are_free;
  Fifos fifos;
  Neighbors neighbors;
  Distances distances;
  RunningCall running;
  Status failure;  // why the call must end: the rank ends it when its verbs return
  Throttle throttle = {};
  bool failed_to_read = false;  // a chunk that came by address may be wrong
  std::vector<uint64_t> heard = {};  // by plan rank: the last call with a chunk from that rank
};

// The kernel could not copy a chunk of another process, so the running call fails on all ranks.
inline void fail_to_read(ChannelContext &context, const Status &why) {
  context.segment.abort(why, context.rank);
  context.failed_to_read = true;
}

// Returns the error of a transfer that differs from the peer's; ok while the peer has not published its call.
Status describe_difference(Segment &segment, uint32_t rank, const Transfers::Difference &difference);
// Returns why a chunk of `peer` is not of this call; ok while the peer has not published its call.
Status find_difference(const Segment &segment, uint32_t rank, uint32_t peer, const Call &call);

}  // namespace collc
