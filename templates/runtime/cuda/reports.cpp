#include "cuda/reports.h"

#include "control/call_log.h"
#include "control/last_calls.h"
#include "cuda/class_times.h"
#include "plan/weights.h"

namespace collc::cuda {
namespace {

constexpr char kThroughHost[] = " through pinned host memory";

Status describe_transfer(const RankContext &context, const DevicePlan &plan, const Report &report, uint32_t p2p_channel,
                         const std::string &missing) {
  const bool sends = report.peer >= context.nranks;
  const uint32_t peer = context.placement.nccl_rank[report.peer % context.nranks];
  if (report.state == static_cast<uint32_t>(ReportState::kDiffers))
    return fail(ncclInvalidUsage, "calls differ: rank %u receives %s from rank %u, which sends %s", context.rank,
                describe_signature(report.need).c_str(), peer, describe_signature(report.have).c_str());
  const bool pinned = plan.pinned.joins(context.plan_rank(), report.peer % context.nranks);
  return fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for rank %u to %s%s (lane %u)%s", context.timeout,
              context.rank, peer, sends ? "receive" : "send", pinned ? kThroughHost : "", p2p_channel, missing.c_str());
}

}  // namespace

Status describe_report(const RankContext &context, const DevicePlan &plan, uint32_t lost, const Report &report,
                       uint32_t channel) {
  // The report does not name the kernel's call, so the missing ranks are the ranks that have not made the last call of this
  // rank.
  const std::string missing = describe_missing(*context.segment, context.rank, context.segment->newest_call(context.rank));
  if (report.program == kExchangeProgram) return describe_transfer(context, plan, report, channel, missing);
  const uint32_t plan_rank = context.plan_rank();
  const EndPlace &end = plan.ends[plan_rank][report.peer];
  std::string by;  // the path, where several could have carried the call
  if (plan.cut[report.program / kProtocols])
    by = describe_class(part_of(plan, report.program, plan_rank, channel, report.step), lost);
  else if (plan.pinned.joins(plan_rank, end.peer))
    by = kThroughHost;
  return fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s rank %u waits for %s rank %u%s (channel %u, step %u)%s",
              context.timeout, context.rank, end.writes ? "a free slot of" : "a chunk of",
              context.placement.nccl_rank[end.peer], by.c_str(), channel, report.step, missing.c_str());
}

}  // namespace collc::cuda
