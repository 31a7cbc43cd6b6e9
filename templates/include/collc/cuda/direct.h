// Direct: the protocol Simple without copies into slots, if readers can reach the writer's buffers. A chunk that is in its
// writer's input, or that the step stores into the writer's output, is read there: one copy instead of two. Its slot then
// only counts; the chunk's address is stored next to the tail.
//
// Each chunk says how it travels, so no rank has to know which buffers others export. RankCall::factor says which buffers of
// a call may be read, and FifoEnd::by_address which readers may read them. All other chunks go through slots. A reader in
// another process has mapped the writer's buffer at another address; the writer's launch has the distance, and the writer
// stores the address that the reader has to use.
//
// Data that are read in this way do not change before they have been read. An input chunk is overwritten, in place, only by a
// result that its reader has reduced from it. If all ranks reduce all inputs, this is not so, and in-place inputs go through
// slots (kOverwritten). An output chunk is written once. The work after the call may write anywhere, so a block that has
// exported a buffer ends only when its readers have freed all its chunks; device.h explains why their loads are over then.
#pragma once
#include "collc/cuda/simple.h"

namespace collc::cuda {

template <class T>
class Direct : public Simple<T, AnyOperation, true> {
 public:
  using Simple<T, AnyOperation, true>::Simple;

  COLLC_DEVICE void finish(uint32_t nsteps, const FifoRef *refs, const ShareRange *shares) {
    // Each thread waits for the ends whose positions it stores; the kernel ends with the last thread. If a wait is given up,
    // the communicator has ended.
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
