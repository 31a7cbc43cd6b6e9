#include "cuda/link_monitor.h"

#include <algorithm>

namespace collc::cuda {
namespace {

constexpr uint32_t kLooksMissing = 3;  // a link that is trained anew is down for a moment

}  // namespace

void LinkMonitor::begin(const RankContext &context, DeviceNumber device) {
  links_ = watch_links(device, context.placement.bus_ids);
  const Allocation &allocation = *context.placement.allocation;
  const GraphLink *first = context.tables->links + allocation.first_link, *last = first + allocation.nlinks;
  // Data that reach the CPU over C2C do not pass through the PCIe link of the GPU.
  if (std::none_of(first, last, [](const GraphLink &link) { return link.kind == LinkClass::kC2c; }))
    lanes_ = watch_lanes(device);
}

std::string LinkMonitor::find_lost_links() const {
  // Acquire: `up` is at least as new as `missing`.
  if (links_ == nullptr || links_->missing.load(std::memory_order_acquire) < kLooksMissing) return "";
  return format("%u of the %u NVLinks of its GPU are up", links_->up.load(std::memory_order_relaxed),
                static_cast<uint32_t>(links_->links.size()));
}

std::string LinkMonitor::find_lost_lanes() const {
  if (looks_.missing() < kLooksMissing) return "";
  return format("its GPU's link of PCIe has %u of its %u lanes", looks_.lately(), looks_.most());
}

}  // namespace collc::cuda
