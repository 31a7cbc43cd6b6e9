#include "transport/fifo.h"

#include <algorithm>
#include <new>

namespace collc {

namespace {

bool is_power(uint32_t number) { return (number & (number - 1)) == 0; }

// Returns whether the writer and the readers are on different machines, one of them this one. All readers of a FIFO are on
// one machine.
bool is_half(const Tables &tables, const Placement &placement, const Fifo &fifo) {
  const auto here = [&placement](uint32_t plan_rank) { return placement.is_here(placement.nccl_rank[plan_rank]); };
  return here(fifo.src) != here(tables.fifo_readers[fifo.first_reader]);
}

bool has_end_here(const Tables &tables, const Placement &placement, const Fifo &fifo) {
  const auto here = [&placement](uint32_t plan_rank) { return placement.is_here(placement.nccl_rank[plan_rank]); };
  const uint32_t *readers = tables.fifo_readers + fifo.first_reader;
  return here(fifo.src) || std::any_of(readers, readers + fifo.nreaders, here);
}

}  // namespace

FifoLayout::FifoLayout(const Tables &tables, const Placement &placement, uint64_t begin, const FifoChoice &choice)
    : slot_bytes_(choice.slot_bytes != 0 ? choice.slot_bytes : placement.allocation->slot_bytes),
      room_bytes_(choice.room_bytes),
      places_of_slot_(is_power(slot_bytes_) && is_power(placement.allocation->slots) ? choice.places : 1) {
  const Allocation &allocation = *placement.allocation;
  uint64_t at = begin;
  for (uint32_t f = 0; f < allocation.nfifos; ++f) {
    const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
    const bool is_left_out = choice.among != nullptr && !(*choice.among)[f];
    if (is_left_out || !has_end_here(tables, placement, fifo) || (choice.only_halves && !is_half(tables, placement, fifo))) {
      places_.push_back({});
      continue;
    }
    const uint64_t source_line = ((1 + uint64_t{allocation.slots}) * sizeof(uint64_t) + kLine - 1) / kLine * kLine;
    FifoPlace place = {};
    place.here = true;
    place.tail = at;
    place.lines = at + source_line;
    place.heads = place.lines + allocation.slots * sizeof(SlotLine);
    at = place.heads + fifo.nreaders * sizeof(HeadLine);
    places_.push_back(place);
  }
  at = whole_pages(at);
  for (FifoPlace &place : places_) {
    if (!place.here || choice.only_halves) continue;  // a layout of halves is for proxy threads, which measure nothing
    place.probe = at;
    at += kProbeRoom;
  }
  at = whole_pages(at);
  for (FifoPlace &place : places_) {
    if (!place.here) continue;
    place.slots = at;
    at += uint64_t{allocation.slots} * slot_bytes_ * places_of_slot_;
  }
  if (room_bytes_ != 0) at = whole_pages(at);
  for (FifoPlace &place : places_) {
    if (!place.here || room_bytes_ == 0) continue;
    place.rooms = at;
    at += uint64_t{allocation.slots} * room_bytes_;
  }
  end_ = at;
}

Fifos::Fifos(const Tables &tables, const Allocation &allocation, const FifoLayout &layout, char *memory, uint32_t plan_rank)
    : ends_(allocation.nfifos), slots_(allocation.slots), slot_bytes_(layout.slot_bytes()) {
  if (is_power(slots_)) slot_mask_ = slots_ - 1;
  slot_room_ = uint64_t{slot_bytes_} * layout.places();
  slot_shift_ = static_cast<uint32_t>(__builtin_ctz(slots_));
  turns_ = layout.places() > 1;
  if (turns_ && slots_ * kApart <= slot_room_) ahead_bytes_ = kMostAhead;
  for (uint32_t f = 0; f < allocation.nfifos; ++f) {
    const Fifo &fifo = tables.fifos[allocation.first_fifo + f];
    FifoEnd &end = ends_[f];
    if (!layout[f].here) continue;
    end.tail = reinterpret_cast<std::atomic<uint64_t> *>(memory + layout[f].tail);
    end.tags = reinterpret_cast<uint64_t *>(memory + layout[f].tail) + 1;
    end.lines = reinterpret_cast<SlotLine *>(memory + layout[f].lines);
    end.slots = memory + layout[f].slots;
    if (layout.room_bytes() != 0) end.rooms = memory + layout[f].rooms;
    end.heads = reinterpret_cast<HeadLine *>(memory + layout[f].heads);
    end.probe = reinterpret_cast<std::atomic<uint64_t> *>(memory + layout[f].probe);
    end.readers = tables.fifo_readers + fifo.first_reader;
    end.nreaders = fifo.nreaders;
    end.source = fifo.src;
    for (uint32_t r = 0; r < fifo.nreaders; ++r)
      if (end.readers[r] == plan_rank) end.heads += r;
  }
}

Status Fifos::connect(const Neighbors &neighbors, const std::vector<uint32_t> &nccl_rank, uint32_t plan_rank, bool sums) {
  uint64_t copied = 0;
  for (FifoEnd &end : ends_) {
    if (end.tail == nullptr) continue;
    if (end.source != plan_rank) {
      end.reach = neighbors.reach_into(nccl_rank[end.source]);
      if (end.reach == Reach::kKernel) ++copied;
      continue;
    }
    end.reach = Reach::kShared;
    end.only_copied = true;
    for (uint32_t r = 0; r < end.nreaders; ++r) {
      const Reach one = neighbors.reach_of(nccl_rank[end.readers[r]]);
      end.reach = std::min(end.reach, one);
      end.only_copied &= one == Reach::kKernel;
    }
  }
  if (!sums || copied == 0) return {};
  const uint64_t bytes = copied * slot_bytes_ + kPage;
  scratch_.reset(new (std::nothrow) char[bytes], std::default_delete<char[]>());
  if (scratch_ == nullptr)
    return fail(ncclSystemError, "no memory for %llu bytes of copied inputs", static_cast<unsigned long long>(bytes));
  char *at = scratch_.get() + (0 - reinterpret_cast<uintptr_t>(scratch_.get())) % kPage;
  for (FifoEnd &end : ends_) {
    if (end.tail == nullptr || end.source == plan_rank || end.reach != Reach::kKernel) continue;
    end.scratch = at;
    at += slot_bytes_;
  }
  return {};
}

}  // namespace collc
