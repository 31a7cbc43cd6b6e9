// Simple without slots where readers reach the writer's buffers: a chunk that stands in its writer's input, or that the step
// puts into its output, is read there. One copy instead of two. What a slot keeps is its turn, and beside the tail the address.
//
// Each chunk says how it travels, so no rank has to know what another one lends: a call says by RankCall::factor which of its
// buffers may be read, and FifoEnd::by_address which readers may. All else goes through the slots. A reader in another process
// has mapped the writer's buffer elsewhere: the writer's launch says how far away, and the address is told as that reader has it.
//
// What is read so does not change before. An input chunk is overwritten, in place, only by a result that its reader has
// reduced from it; where all ranks reduce all inputs that is not so, and in place these go through the slots (kOverwritten). An
// output chunk is written once. Whatever comes after the call may write there, so a block that has
// lent something ends when its readers have freed all its chunks: their loads are over then (device.h says why).
#pragma once
#include "collc/cuda/simple.h"

namespace collc::cuda {

template <class T>
class Direct : public Simple<T, AnyOperation, true> {
 public:
  using Simple<T, AnyOperation, true>::Simple;

  COLLC_DEVICE void finish(uint32_t nsteps, const FifoRef *refs, const ShareRange *shares) {
    // Each thread for the ends that it puts back; the kernel ends with the last. A wait that is given up leaves a communicator
    // that has ended.
    const uint32_t warps = thread_count() / kWarp, lane = thread_index() % kWarp;
#pragma unroll 1
    for (uint32_t s = thread_index() / kWarp; this->lends_ && s < nsteps; s += warps) {
      const Step &step = this->steps_[s];
#pragma unroll 1
      for (uint32_t i = lane; shares[step.share].nchunks != 0 && i < step.nrecv + step.nsend; i += kWarp) {
        if (i < step.nrecv) continue;
        const uint32_t number = refs[step.first_ref + i].fifo;
        FifoEnd &end = this->ends_[number];
        const uint64_t last = this->passed_before(end, shares[step.share].nchunks - 1);
        static_cast<void>(this->wait_for(end, last + 1, false, step, number));
      }
    }
    Counters::finish(nsteps, refs, shares);
  }
};

}  // namespace collc::cuda
