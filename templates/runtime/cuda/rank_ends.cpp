// Where the ends of a rank's FIFOs and transfers are, for its GPU.
#include <map>

#include "cuda/fill.h"
#include "cuda/lane_ends.h"
#include "cuda/rank.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {

// Those of this machine, for this GPU.
Status CudaRank::pin_halves(Address *at) {
  const HalvesLayout layout(*context_.tables, context_.placement);
  char *const begin = context_.segment->memory() + layout.begin;
  COLLC_RETURN_IF_FAILED(world_->pin_halves(begin, layout.end() - layout.begin, "what goes to other machines"));
  return check(driver().host_address(at, begin, 0), "mapping pinned memory");
}

// Calls that several classes share do without the class net where not all ranks have a card for it.
Status CudaRank::join_net(const NetLayout &net, Address *at) {
  char *const begin = context_.segment->memory() + net.begin(context_.rank);
  const uint64_t bytes = net.end(context_.rank) - net.begin(context_.rank);
  Status pinned;
  if (bytes != 0) pinned = world_->pin_halves(begin, bytes, "the class net");
  if (bytes != 0 && pinned.ok()) pinned = check(driver().host_address(at, begin, 0), "mapping pinned memory");
  return join_cards(context_, net, pinned, &net_refused_);
}

// Those of the plan, and the lanes to all ranks.
Status CudaRank::make_ends(std::vector<FifoEnd> *made) {
  const DevicePlan &plan = world_->plan();
  std::map<uint32_t, Address> arenas;
  for (uint32_t peer = 0; peer < context_.nranks; ++peer)
    if (!plan.pinned.joins(plan_rank_, peer) && !plan.elsewhere.apart(plan_rank_, peer))
      COLLC_RETURN_IF_FAILED(world_->arena_of(peer, device_, &arenas[peer]));
  Address pinned_halves = 0;
  if (plan.elsewhere.any()) COLLC_RETURN_IF_FAILED(pin_halves(&pinned_halves));
  const Halves halves(context_, pinned_halves);
  const auto arena = [&](uint32_t peer) { return arenas.at(peer); };
  // Refused: of ends that no call uses.
  const auto region = [this](uint32_t peer) { return refused_.empty() ? pinned_memory_->region(peer) : Address{0}; };
  std::vector<FifoEnd> &ends = *made;
  ends.resize(plan.ends[plan_rank_].size() * kProtocols);
  const TeamAddresses team{team_.own.at, team_.all.at};
  if (const NetLayout net = net_layout(*context_.tables, context_.placement); net.empty()) {
    plan.make_ends(plan_rank_, arenas[plan_rank_], arena, region, ends.data(), halves, team);
  } else {
    Address at = 0;
    COLLC_RETURN_IF_FAILED(join_net(net, &at));
    plan.make_ends(plan_rank_, arenas[plan_rank_], arena, region, ends.data(), NetHalves(net, context_.rank, at), team);
  }
  mark_ends_by_address(ends.data());
  const std::vector<FifoEnd> lanes = make_lane_ends(plan, plan_rank_, arena, region, halves);
  COLLC_RETURN_IF_FAILED(put_on_device(lanes.data(), lanes.size() * sizeof(FifoEnd), &lane_ends_));
  return check(driver().allocate(&messages_, kTableMessages * sizeof(Message)), "allocating GPU memory");
}

}  // namespace collc::cuda
