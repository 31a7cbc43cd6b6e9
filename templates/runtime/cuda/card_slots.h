// Slots between servers in memory of the GPU that writes or reads them, for engines whose cards touch it (GPUDirect): where they lie
// in what each rank of this machine has for them. Everything else of a half stays in pinned host memory, and so do the slots of a
// FIFO that several ranks read.
#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include "collc/tables.h"
#include "transport/fifo.h"
#include "transport/transfers.h"

namespace collc::cuda {

class CardSlots {
 public:
  struct Place {
    uint32_t rank;  // NCCL's
    uint64_t at;  // in its memory
  };

  // `fifos` and `transfers`: the halves.
  CardSlots(const Tables &tables, const Placement &placement, const FifoLayout &fifos, const TransferLayout &transfers) {
    const Allocation &allocation = *placement.allocation;
    for (uint32_t f = 0; f < allocation.nfifos; ++f) {
      const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
      if (!fifos[f].here || fifo.nreaders != 1) continue;
      const uint32_t source = placement.nccl_rank[fifo.src];
      const uint32_t reader = placement.nccl_rank[tables.fifo_readers[fifo.first_reader]];
      fifos_[f] = take(placement.is_here(source) ? source : reader, uint64_t{allocation.slots} * fifos.slot_bytes());
    }
    const auto nranks = static_cast<uint32_t>(placement.machine.size());
    for (uint32_t from = 0; from < nranks; ++from)
      for (uint32_t to = 0; to < nranks; ++to)
        if (placement.is_here(from) != placement.is_here(to))
          queues_[{from, to}] =
              take(placement.is_here(from) ? from : to, uint64_t{TransferLayout::kSlots} * transfers.slot_bytes());
  }

  uint64_t bytes(uint32_t rank) const {
    const auto found = bytes_.find(rank);
    return found == bytes_.end() ? 0 : found->second;
  }
  // Null: in host memory.
  const Place *fifo(uint32_t number) const {
    const auto found = fifos_.find(number);
    return found == fifos_.end() ? nullptr : &found->second;
  }
  // Between ranks of NCCL, of which one is here.
  const Place &queue(uint32_t from, uint32_t to) const { return queues_.at({from, to}); }

 private:
  Place take(uint32_t rank, uint64_t bytes) {
    uint64_t &used = bytes_[rank];
    const uint64_t at = used;
    used = at + (bytes + kPage - 1) / kPage * kPage;
    return {rank, at};
  }

  std::map<uint32_t, uint64_t> bytes_;
  std::map<uint32_t, Place> fifos_;
  std::map<std::pair<uint32_t, uint32_t>, Place> queues_;
};

}  // namespace collc::cuda
