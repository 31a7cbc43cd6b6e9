#include "cuda/connector_memory.h"

#include <cstring>
#include <map>
#include <utility>

#include "base/environment.h"
#include "cuda/lane_ends.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {
namespace {

bool is_zero(const char *text) { return text != nullptr && std::strcmp(text, "0") == 0; }

// Pins the halves of FIFOs and p2p channels to other servers.
Status pin_halves(const RankContext &context, World *world, Address *at) {
  const HalvesLayout layout(*context.tables, context.placement);
  char *const begin = context.segment->memory() + layout.begin;
  COLLC_RETURN_IF_FAILED(world->pin_halves(begin, layout.end() - layout.begin, "what goes to other machines"));
  return check(driver().host_address(at, begin, 0), "mapping pinned memory");
}

}  // namespace

Status ConnectorMemory::share(const RankContext &context, const Device &device, const World &world) {
  COLLC_RETURN_IF_FAILED(join_multicast(context, device, world));
  std::string &refused = refusals_[kPciePart];
  COLLC_RETURN_IF_FAILED(PinnedMemory::share(context, device.number, world.plan().pinned, &pinned_, &refused));
  if (!refused.empty()) dispose(std::move(pinned_));
  return {};
}

Status ConnectorMemory::join_multicast(const RankContext &context, const Device &device, const World &world) {
  const DevicePlan &plan = world.plan();
  if (plan.team_bytes == 0) return {};
  std::string reason;
  if (is_zero(read_text("COLLC_NVLS"))) reason = "COLLC_NVLS=0";
  if (is_zero(read_text("NCCL_NVLS_ENABLE"))) reason = "NCCL_NVLS_ENABLE=0";
  if (device.in_switch.empty()) reason = "this library has no kernels for that on its GPU";
  if (world.ranks_on(&device) > 1) reason = "several ranks share its GPU";
  return share_team(context, device, plan.team_bytes, reason, &multicast_);
}

Status ConnectorMemory::pin_net_halves(const RankContext &context, const NetLayout &layout, World *world, Address *at) {
  char *const begin = context.segment->memory() + layout.begin(context.rank);
  const uint64_t bytes = layout.end(context.rank) - layout.begin(context.rank);
  Status pinned;
  if (bytes != 0) pinned = world->pin_halves(begin, bytes, "the class net");
  if (bytes != 0 && pinned.ok()) pinned = check(driver().host_address(at, begin, 0), "mapping pinned memory");
  return join_cards(context, layout, pinned, &refusals_[kNetPart]);
}

Status ConnectorMemory::find_connectors(const RankContext &context, const Device &device, World *world,
                                        Connectors *connectors) {
  const DevicePlan &plan = world->plan();
  const uint32_t rank = context.plan_rank();
  std::map<uint32_t, Address> arenas;
  for (uint32_t peer = 0; peer < context.nranks; ++peer)
    if (!plan.pinned.joins(rank, peer) && !plan.elsewhere.apart(rank, peer))
      COLLC_RETURN_IF_FAILED(world->arena_of(peer, &device, &arenas[peer]));
  Address halves_at = 0;
  if (plan.elsewhere.any()) COLLC_RETURN_IF_FAILED(pin_halves(context, world, &halves_at));
  const Halves halves(context, halves_at);
  const auto arena = [&](uint32_t peer) { return arenas.at(peer); };
  // Connectors of a refused path class get address 0: no call uses them.
  const bool is_refused = !refusals_[kPciePart].empty();
  const auto region = [&](uint32_t peer) { return is_refused ? Address{0} : pinned_->region(peer); };
  connectors->fifos.resize(plan.ends[rank].size() * kProtocols);
  FifoEnd *const fifos = connectors->fifos.data();
  const TeamAddresses team{multicast_.own.at, multicast_.all.at};
  if (const NetLayout net = net_layout(*context.tables, context.placement); net.empty()) {
    plan.make_ends(rank, arena, region, fifos, halves, team);
  } else {
    Address at = 0;
    COLLC_RETURN_IF_FAILED(pin_net_halves(context, net, world, &at));
    plan.make_ends(rank, arena, region, fifos, NetHalves(net, context.rank, at), team);
  }
  connectors->p2p = make_lane_ends(plan, rank, arena, region, halves);
  return {};
}

void ConnectorMemory::leave(DeferredFrees *frees, const Device *device) {
  for (const VirtualMemory &mapped : {multicast_.all, multicast_.own})
    if (mapped.bytes != 0) frees->unmap(device, mapped);
  if (pinned_ != nullptr) frees->drop(std::move(pinned_));
}

}  // namespace collc::cuda
