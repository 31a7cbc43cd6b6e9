// Describes what a kernel reports: a wait that lasted too long, or data of another call.
#pragma once
#include <cstdint>

#include "cuda/device_plan.h"
#include "executor/backend.h"

namespace collc::cuda {

// Returns the error that a report of `channel` means. `lost`: a bit for each path class that has failed.
Status describe_report(const RankContext &context, const DevicePlan &plan, uint32_t lost, const Report &report,
                       uint32_t channel);

}  // namespace collc::cuda
