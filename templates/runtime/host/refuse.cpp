// A reader that cannot map a buffer (no descriptor or address space left) says so in its line of the FIFO, and the writer,
// who waits for its readers anyway, puts the chunk into the slot.
#include <cstring>

#include "host/rank.h"

namespace collc {

bool HostRank::serve_refused() {
  bool served = false;
  for (const ChannelState &channel : channels_) {
    if (channel.done) continue;
    for (uint32_t s = 0; s < channel.nsteps; ++s) {
      const Step &step = channel.steps[s];
      for (uint32_t i = 0; i < step.nsend; ++i) {
        const End &end = ends_[refs_[step.first_ref + step.nrecv + i].fifo];
        for (uint32_t r = 0; end.direct && r < end.nreaders; ++r) {
          auto &line = *reinterpret_cast<ReaderLine *>(end.heads + r * kLine);
          const uint64_t number = line.refused.load(std::memory_order_seq_cst);
          // It may have mapped the buffer after all, and read: then the slot is another chunk's, or no chunk's any more.
          if (number <= line.head.load(std::memory_order_acquire)) continue;
          if (number == line.served.load(std::memory_order_relaxed)) continue;
          const uint64_t at = slot_of(number - 1);
          Sight &sight = end.lines[at].sight;
          if (sight.buffer.mark == 0)
            std::memcpy(end.slots + at * slot_bytes_, reinterpret_cast<const void *>(sight.address), sight.bytes);
          sight.buffer.mark = 1;
          line.served.store(number, std::memory_order_seq_cst);
          context_.segment->ring(nccl_rank(end.readers[r]));
          served = true;
        }
      }
    }
  }
  return served;
}

}  // namespace collc
