// What kernels report of waits that have lasted too long and of calls that differ, in words.
#include "control/call_log.h"
#include "control/last_calls.h"
#include "cuda/class_times.h"
#include "cuda/rank.h"
#include "plan/weights.h"

namespace collc::cuda {
namespace {

constexpr char kThroughHost[] = " through pinned host memory";

}  // namespace

// Which call a kernel is in is not known here, so that is of the rank's last call.
std::string CudaRank::describe_missing() const {
  return collc::describe_missing(*context_.segment, context_.rank, context_.segment->newest_call(context_.rank));
}

Status CudaRank::describe(const Report &report, uint32_t channel) const {
  const std::string missing = describe_missing();
  if (report.program == kExchangeProgram) {
    const bool sends = report.peer >= context_.nranks;
    const uint32_t peer = context_.placement.nccl_rank[report.peer % context_.nranks];
    if (report.state == static_cast<uint32_t>(ReportState::kDiffers))
      return fail(ncclInvalidUsage, "calls differ: rank %u receives %s from rank %u, which sends %s", context_.rank,
                  describe_signature(report.need).c_str(), peer, describe_signature(report.have).c_str());
    const bool pinned = world_->plan().pinned.joins(context_.plan_rank(), report.peer % context_.nranks);
    return fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for rank %u to %s%s (lane %u)%s", context_.timeout,
                context_.rank, peer, sends ? "receive" : "send", pinned ? kThroughHost : "", channel, missing.c_str());
  }
  const DevicePlan &plan = world_->plan();
  const EndPlace &end = plan.ends[context_.plan_rank()][report.peer];
  std::string by;  // where several could have carried the call
  if (plan.cut[report.program / kProtocols])
    by = describe_class(part_of(plan, report.program, context_.plan_rank(), channel, report.step), losses_.lost());
  else if (plan.pinned.joins(context_.plan_rank(), end.peer))
    by = kThroughHost;
  return fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for %s rank %u%s (channel %u, step %u)%s",
              context_.timeout, context_.rank, end.writes ? "a free slot of" : "a chunk of",
              context_.placement.nccl_rank[end.peer], by.c_str(), channel, report.step, missing.c_str());
}

}  // namespace collc::cuda
