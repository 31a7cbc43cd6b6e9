#include "cuda/gpudirect.h"

#include <mutex>

#include "base/log.h"
#include "cuda/card_slots.h"
#include "cuda/deferred_frees.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {
namespace {

// The GPU whose context is current where the plugin makes its comms: some make the buffer by which they flush with the first of
// these, for all. Once a second one has been, nobody knows which of them that is.
class OnlyGpu {
 public:
  void note(DeviceNumber number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    several_ |= number_ != -1 && number_ != number;
    number_ = number;
  }
  bool several() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return several_;
  }

 private:
  mutable std::mutex mutex_;
  int number_ = -1;
  bool several_ = false;
};

OnlyGpu &only_gpu() {
  static auto *const only = new OnlyGpu;  // outlives every thread
  return *only;
}

char *pointer(Address at) { return reinterpret_cast<char *>(at); }

Status make_slots(const RankContext &context, const Device &device, std::shared_ptr<const CardMemory> *made,
                  DeviceSlots *slots) {
  const HalvesLayout layout(*context.tables, context.placement);
  const CardSlots places(*context.tables, context.placement, context.rank, layout.fifos, layout.transfers);
  Address at = 0;
  COLLC_RETURN_IF_FAILED(check(driver().allocate(&at, places.bytes()), "allocating memory for slots"));
  *made = std::make_shared<const CardMemory>(device, at, places.bytes());
  for (const CardSlots::Part &part : places.parts())
    slots->parts.push_back({pointer(at + part.at), part.bytes, part.machine, part.incoming});
  slots->fifos.resize(context.placement.allocation->nfifos);
  for (const auto &[fifo, place] : places.fifos()) slots->fifos[fifo] = pointer(at + place);
  slots->queues.resize(size_t{context.nranks} * context.nranks);
  for (const auto &[ranks, place] : places.queues())
    slots->queues[size_t{ranks.first} * context.nranks + ranks.second] = pointer(at + place);
  slots->owner = *made;
  slots->largest = std::max(layout.fifos.slot_bytes(), layout.transfers.slot_bytes());
  slots->gpu = [in = device.context] { return std::make_shared<Current>(in); };
  slots->may = []() -> Status {
    if (!only_gpu().several()) return {};
    return fail(ncclInvalidUsage, "several GPUs of this process have couriers");
  };
  return {};
}

}  // namespace

CardMemory::~CardMemory() {
  auto frees = std::make_unique<DeferredFrees>();
  frees->free_memory(&device_, at_);
  dispose_later(std::move(frees));
}

bool tries_gpudirect(const RankContext &context, const Device &device, bool wanted) {
  const Placement &placement = context.placement;
  if (placement.machine.empty()) return false;
  for (uint32_t before = 0; before < context.rank; ++before)
    if (placement.is_here(before)) return false;  // that one has the courier, or one before it
  only_gpu().note(device.number);
  if (!wanted) return false;
  const bool can = has_attribute(device, kGpuDirect);
  if (!can) log(LogLevel::kInfo, "no GPUDirect: rank %u: its GPU has no GPUDirect RDMA", context.rank);
  return can;
}

Status join_by_card(const RankContext &context, const Device &device, std::shared_ptr<const CardMemory> *own) {
  const Current current(device.context);
  DeviceSlots slots;
  std::shared_ptr<const CardMemory> made;
  const Status status = make_slots(context, device, &made, &slots);
  COLLC_RETURN_IF_FAILED(join_halves(context, true, status.ok() ? &slots : nullptr));
  if (!status.ok()) slots.refused = status.text();
  if (slots.refused.empty()) {
    *own = std::move(made);
    log(LogLevel::kInfo, "GPUDirect: slots of rank %u between machines are in memory of its GPU", context.rank);
  } else {
    log(LogLevel::kInfo, "no GPUDirect: rank %u: %s", context.rank, slots.refused.c_str());
  }
  return {};
}

}  // namespace collc::cuda
