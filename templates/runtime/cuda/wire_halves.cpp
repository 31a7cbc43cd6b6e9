#include "cuda/wire_halves.h"

#include "base/log.h"
#include "cuda/half_places.h"
#include "cuda/net_halves.h"
#include "cuda/deferred_frees.h"
#include "cuda/slot_sizes.h"
#include "cuda/team_plan.h"
#include "wire/proxy.h"

namespace collc::cuda {
namespace {

static_assert(sizeof(SlotLine) == kWordsPerLine * sizeof(uint64_t), "kernels leave byte counts in these lines");

// LL for every call is followed as far as programs have lines.
void say_what_stays(const RankContext &context, const Elsewhere &elsewhere) {
  const Allocation &allocation = *context.placement.allocation;
  uint32_t stay = 0;
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = context.tables->programs[allocation.first_program + p];
    if (uses_switch(*context.tables, program, allocation.nranks) || !elsewhere.has_lines(*context.tables, allocation, program))
      ++stay;
  }
  if (stay != 0)
    log(LogLevel::kInfo, "LL is asked for: %u of %u programs have no lines between machines and stay on Simple", stay,
        allocation.nprograms);
}

}  // namespace

HalvesLayout::HalvesLayout(const Tables &tables, const Placement &placement)
    : begin(DeferredFrees::words_bytes(static_cast<uint32_t>(placement.nccl_rank.size()))),
      fifos(tables, placement, begin, {true, 0, nullptr, 0}),
      transfers(placement, fifos.end(), true),
      lines(find_lined(tables, *placement.allocation)),
      lined(tables, placement, whole_pages(transfers.end()),
            {true, slot_bytes_for(kLL, lines.chunk_bytes), &lines.uses, lines.chunk_bytes}) {}

uint64_t segment_bytes(const Tables &tables, const Placement &placement) {
  if (placement.machine.empty()) return net_layout(tables, placement).end();
  return whole_pages(HalvesLayout(tables, placement).end());
}

Status find_elsewhere(const RankContext &context, Elsewhere *elsewhere) {
  *elsewhere = {};
  if (context.placement.machine.empty()) return {};
  for (const uint32_t rank : context.placement.nccl_rank) elsewhere->machine.push_back(context.placement.machine[rank]);
  elsewhere->queue_slots = TransferLayout::kSlots;
  const HalvesLayout layout(*context.tables, context.placement);
  elsewhere->queue_slot_bytes = layout.transfers.slot_bytes();
  elsewhere->lines = layout.lines;
  if (elsewhere->queue_slot_bytes > kSlotHead) return {};
  return fail(ncclInvalidUsage, "%u ranks on several machines are more than libraries for CUDA join", context.nranks);
}

Status follow_proxies(const RankContext &context, const Elsewhere &elsewhere, Overrides *overrides) {
  const bool lined = elsewhere.lines.chunk_bytes != 0;
  if (overrides->protocol <= Overrides::kSimple) return {};
  if (lined && overrides->protocol == static_cast<int32_t>(kLL)) {
    if (context.rank == 0) say_what_stays(context, elsewhere);
    return {};
  }
  const char *const among = lined ? "Simple and LL" : "Simple alone";
  if (overrides->is_preference == 0)
    return fail(ncclInvalidUsage,
                "COLLC_PROTO: between machines, chunks of this library travel over %s; unset it, or make it Simple", among);
  if (context.rank == 0)
    log(LogLevel::kWarn, "NCCL_PROTO is not followed: between machines, chunks of this library travel over %s", among);
  overrides->protocol = -1;
  return {};
}

HalfPlaces Halves::fifo(const EndPlace &end, uint32_t protocol) const {
  return half_places(protocol == kLL ? layout_.lined[end.fifo] : layout_.fifos[end.fifo], end.reader, at_ - layout_.begin);
}

HalfPlaces Halves::queue(uint32_t writer, uint32_t reader) const {
  const uint32_t from = placement_.nccl_rank[writer], to = placement_.nccl_rank[reader];
  const uint64_t at = layout_.transfers.queue(from, to);
  return {address(at + offsetof(TransferQueue, slots)), address(at + offsetof(TransferQueue, tail)),
          address(at + offsetof(TransferQueue, head)), address(at + offsetof(TransferQueue, bytes))};
}

Status join_halves(const RankContext &context) {
  if (context.placement.machine.empty()) return {};
  const HalvesLayout layout(*context.tables, context.placement);
  const auto halves = [&](const FifoLayout &places) {
    return Fifos(*context.tables, *context.placement.allocation, places, context.segment->memory(), Fifos::kNobody);
  };
  bool told = false;  // to all others, in an exchange
  const collc::Exchange exchange = [&](const Bytes &mine, std::vector<Bytes> *all) {
    const Status status = context.exchange(mine, all);
    told = !status.ok();
    return status;
  };
  const Status joined =
      join_machines({context.segment, context.placement, context.rank, context.processes, context.secret, context.seconds,
                     exchange, context.gone, halves(layout.fifos), layout.transfers, halves(layout.lined)});
  return told ? joined : end_creation(context, joined);
}

}  // namespace collc::cuda
