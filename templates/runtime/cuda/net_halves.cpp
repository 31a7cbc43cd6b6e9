#include "cuda/net_halves.h"

#include <numeric>

#include "cuda/copy_words.h"
#include "cuda/half_places.h"
#include "cuda/deferred_frees.h"
#include "cuda/slot_sizes.h"
#include "cuda/staged.h"
#include "wire/proxy.h"

namespace collc::cuda {
namespace {

// Returns the placement for proxies of the class net: each rank is on a separate machine.
Placement apart(const Placement &placement, uint32_t rank) {
  Placement each = placement;
  each.machine.resize(placement.nccl_rank.size());
  std::iota(each.machine.begin(), each.machine.end(), 0);
  each.local_machine = rank;
  return each;
}

}  // namespace

NetLayout::NetLayout(const Tables &tables, const Placement &placement, uint64_t begin) : begins_(1, begin) {
  if (placement.allocation == nullptr || !placement.machine.empty()) return;
  const ClassFifos classes = class_fifos(tables, *placement.allocation);
  if (classes.wired_chunk == 0) return;
  const FifoChoice choice{true, slot_bytes_for(kSimple, classes.wired_chunk), &classes.wired};
  for (uint32_t rank = 0; rank < placement.nccl_rank.size(); ++rank) {
    halves_.emplace_back(tables, apart(placement, rank), begins_.back(), choice);
    begins_.push_back(whole_pages(halves_.back().end()));
  }
}

NetLayout net_layout(const Tables &tables, const Placement &placement) {
  const auto nranks = static_cast<uint32_t>(placement.nccl_rank.size());
  return NetLayout(tables, placement, DeferredFrees::words_bytes(nranks) + CopyWords::bytes(nranks));
}

HalfPlaces NetHalves::fifo(const EndPlace &end, uint32_t) const {
  return half_places(layout_.halves(rank_)[end.fifo], end.reader, at_ - layout_.begin(rank_));
}

Status join_cards(const RankContext &context, const NetLayout &layout, const Status &pinned, std::string *refused) {
  std::vector<Fifos> halves;
  for (uint32_t rank = 0; rank < context.nranks; ++rank)
    halves.emplace_back(*context.tables, *context.placement.allocation, layout.halves(rank), context.segment->memory(),
                        Fifos::kNobody);
  const Placement placement = apart(context.placement, context.rank);
  JoinRequest request{context.segment, placement,        context.rank, context.processes,    context.secret,
                      context.seconds, context.exchange, context.gone, halves[context.rank], TransferLayout(context.nranks, 0)};
  request.ranks = &halves;
  return join_ranks(pinned, request, refused);
}

}  // namespace collc::cuda
