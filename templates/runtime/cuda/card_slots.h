// Slots between servers in memory of the GPU of one rank, that whose process has the courier of its machine: where they lie in it.
// Everything else of a half stays in pinned host memory, and so do the slots of a FIFO that several ranks read.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "collc/tables.h"
#include "transport/fifo.h"
#include "transport/transfers.h"

namespace collc::cuda {

class CardSlots {
 public:
  // What goes to a machine, or comes from it.
  struct Part {
    uint64_t at, bytes;
    uint32_t machine;
    bool incoming;
  };

  // `fifos` and `transfers`: the halves.
  CardSlots(const Tables &tables, const Placement &placement, uint32_t rank, const FifoLayout &fifos,
            const TransferLayout &transfers) {
    for (uint32_t machine = 0; machine < placement.nmachines(); ++machine)
      for (const bool incoming : {false, true}) {
        if (machine == placement.home) continue;
        const uint64_t begin = bytes_;
        const auto is_part = [&](uint32_t from, uint32_t to) {
          return (incoming ? to : from) == rank && placement.machine[incoming ? from : to] == machine;
        };
        const Allocation &allocation = *placement.allocation;
        for (uint32_t f = 0; f < allocation.nfifos; ++f) {
          const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
          if (fifos[f].here && fifo.nreaders == 1 &&
              is_part(placement.nccl_rank[fifo.src], placement.nccl_rank[tables.fifo_readers[fifo.first_reader]]))
            fifos_[f] = take(uint64_t{allocation.slots} * fifos.slot_bytes());
        }
        const auto nranks = static_cast<uint32_t>(placement.machine.size());
        for (uint32_t peer = 0; peer < nranks; ++peer) {
          const std::pair<uint32_t, uint32_t> queue = incoming ? std::pair(peer, rank) : std::pair(rank, peer);
          if (is_part(queue.first, queue.second))
            queues_[queue] = take(uint64_t{TransferLayout::kSlots} * transfers.slot_bytes());
        }
        parts_.push_back({begin, bytes_ - begin, machine, incoming});
      }
  }

  uint64_t bytes() const { return bytes_; }
  const std::vector<Part> &parts() const { return parts_; }
  // By FIFO of the allocation; the others are in host memory.
  const std::map<uint32_t, uint64_t> &fifos() const { return fifos_; }
  // By ranks of NCCL, the sending one first.
  const std::map<std::pair<uint32_t, uint32_t>, uint64_t> &queues() const { return queues_; }

 private:
  static constexpr uint64_t kCardPage = 64 << 10;  // in which drivers give memory of GPUs to cards
  uint64_t take(uint64_t bytes) {
    const uint64_t at = bytes_;
    bytes_ += (bytes + kCardPage - 1) / kCardPage * kCardPage;
    return at;
  }

  uint64_t bytes_ = 0;
  std::vector<Part> parts_;
  std::map<uint32_t, uint64_t> fifos_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> queues_;
};

}  // namespace collc::cuda
