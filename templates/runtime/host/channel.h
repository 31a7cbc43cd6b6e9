// The state that the verbs of a channel work on: the running call, the channel, and what the channels of a rank share.
#pragma once
#include <cstdint>
#include <vector>

#include "collc/step_program.h"
#include "control/segment.h"
#include "host/throttle.h"
#include "host/reduce.h"
#include "plan/call.h"
#include "transport/fifo.h"

namespace collc {

// Peers of a step, at most.
constexpr uint32_t kMostPeers = 256;
// Chunks from here on may go by address: below, waiting for readers costs more than a copy.
constexpr uint64_t kLeastByAddress = 4 << 10;
// Where ranks share cores, chunks from here on teach what slots cost (transport/slot_ways.h).
constexpr uint64_t kLeastLearnt = 16 << 10;

// The collective that a rank is in.
struct RunningCall {
  const Call *call = nullptr;  // the last one that was begun
  uint32_t element_bytes = 1;
  ReduceFunction reduce = nullptr;  // of its type and operation
  Finish finish;                    // for steps that complete a reduction
  bool streams = false;             // the result goes past the caches
  bool streams_slots = false;  // what is put into slots goes past the caches at first
  bool pulled = false;  // a broadcast that the kernel copies out of the root's memory, at first
  bool learns_pulls = false;  // one of which is learnt whether it should
  bool keeps_input = true;          // what is sent of the input stands until it was read
  bool awaits_fetching = false;     // else: this rank overwrites it once its readers have copied it
  bool sums_everywhere = false;     // an all_reduce that all ranks reduce themselves, of what the kernel copies
  const Program *program = nullptr;  // the call's, or what it may run otherwise
  bool says_far = false, hears_far = false;  // the cores of the ranks are far apart, for this rank, or for another
};

struct ChannelState {
  const Step *steps = nullptr;
  uint32_t nsteps = 0;
  uint64_t iterations = 0;
  Cursor at = {};
  bool done = true;
  uint32_t blocked_on = 0;  // plan rank
  uint64_t chunk = 0;
  uint64_t busy_ns = 0;  // of this call
  uint32_t part = 0;     // the class of its links, where the program is cut into classes
};

// State shared by all channels of a rank.
struct ChannelContext {
  Segment &segment;
  uint32_t rank;
  const std::vector<uint32_t> &nccl_rank;  // by plan rank
  const FifoRef *refs;
  bool cores_are_free;
  Fifos fifos;
  Neighbours neighbours;
  Distances distances;
  RunningCall running;
  // The call must end, and why; the rank ends it when its verbs return.
  Status failure;
  Throttle throttle = {};
  bool failed_to_read = false;  // a chunk that came by address may be wrong
  std::vector<uint64_t> heard = {};  // by plan rank: the number of the last call of which something has come from there
};

// Why a chunk of `peer` is not of this call; ok while the peer has not said yet what it calls.
Status find_difference(const Segment &segment, uint32_t rank, uint32_t peer, const Call &call);

}  // namespace collc
