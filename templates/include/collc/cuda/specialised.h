// The second executor, for channels whose steps are generated as code by `collc compile --specialise` (specialised.cu.j2).
//
// The behavior of a channel, step by step (its lag, and what it receives, sends, reads and stores), is a variant. Channels of
// any ranks and programs with the same behavior share a variant. For a step, only the facts that a variant leaves open come
// from the channel's tables: its share, its references, and the place of the own input among the received chunks. So the
// compiler knows the number of sources and destinations of each step, and the steps need no loop. The host finds a channel's
// variant by comparing all of it. A program with a channel that has none runs by the table.
#pragma once
#include "collc/cuda/executor.h"

namespace collc::cuda {

template <class Verbs>
class WrittenChannel {
 public:
  COLLC_DEVICE WrittenChannel(Verbs &verbs, const ChannelTables &tables, const ShareRange *shares, uint64_t iterations)
      : verbs_(verbs), tables_(tables), shares_(shares), iterations_(iterations) {}

  COLLC_DEVICE uint64_t iterations() const { return iterations_; }

  // Runs step `number` of the channel. Returns false if its wait has failed.
  template <uint16_t lag, uint8_t flags, uint16_t nrecv, uint16_t nsend>
  COLLC_DEVICE bool step(uint64_t iteration, uint32_t number) {
    // Only such a step may reduce its own input after received chunks (what_kernels_lack); after how many depends on the
    // rank.
    constexpr bool kHasPlace = nrecv != 0 && nsend == 0 && (flags & kInput) != 0 && (flags & kOutput) != 0;
    const Step &row = tables_.steps[number];
    const ShareRange &share = shares_[row.share];
    const uint64_t index = iteration - lag;  // before the step's first iteration the difference wraps to a huge number
    if (index >= share.nchunks) return true;
    const Chunk chunk = chunk_of(share, index);
    const Step step{row.first_ref, row.share, lag, nrecv, nsend, flags, kHasPlace ? row.input_at : uint8_t{0}};
    const FifoRef *recv = tables_.refs + step.first_ref, *send = recv + nrecv;
    if (verbs_.wait(step, recv, send, chunk) != Progress::kDone) return false;
    verbs_.move(step, recv, send, share, chunk);
    verbs_.publish(step, recv, send, chunk);
    return true;
  }

 private:
  Verbs &verbs_;
  const ChannelTables &tables_;
  const ShareRange *shares_;
  uint64_t iterations_;
};

// `Variants` is generated; it has run(channel, variant).
template <class Variants>
struct WrittenExecutor {
  template <class Verbs>
  static COLLC_DEVICE Progress run(Verbs &verbs, const ChannelTables &tables, const DeviceChannel &place,
                                   const ShareRange *shares, uint64_t iterations) {
    WrittenChannel<Verbs> channel(verbs, tables, shares, iterations);
    return Variants::run(channel, place.variant) ? Progress::kDone : Progress::kAborted;
  }
};

#define COLLC_WRITTEN_KERNEL(name, type, protocol, variants)                             \
  COLLC_KERNEL(kMaxThreads) collc_written_##name(COLLC_KERNEL_ARGUMENT(Launch) launch) { \
    run_block<type, protocol<type, SumsAlone>, WrittenExecutor<variants>>(launch);       \
  }
#define COLLC_WRITTEN_Simple(name, type, variants) COLLC_WRITTEN_KERNEL(name, type, Simple, variants)
#define COLLC_WRITTEN_LL(name, type, variants) COLLC_WRITTEN_KERNEL(name, type, LL, variants)
#if defined(COLLC_PRE_VOLTA)
#define COLLC_WRITTEN_LL128(name, type, variants)
#else
#define COLLC_WRITTEN_LL128(name, type, variants) COLLC_WRITTEN_KERNEL(name, type, LL128, variants)
#endif

}  // namespace collc::cuda
