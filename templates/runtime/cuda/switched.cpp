// What a rank does about programs inside a switch: it joins the team that they need, and says which calls they serve.
#include <cstring>

#include "base/environment.h"
#include "collc/collective_traits.h"
#include "cuda/rank.h"

namespace collc::cuda {
namespace {

bool says_no(const char *wish) { return wish != nullptr && std::strcmp(wish, "0") == 0; }

}  // namespace

// For programs inside a switch, where the plan has some; without a team, calls run others.
Status CudaRank::join_team() {
  const DevicePlan &plan = world_->plan();
  if (plan.team_bytes == 0) return {};
  std::string may_not;
  if (says_no(read_text("COLLC_NVLS"))) may_not = "COLLC_NVLS=0";
  if (says_no(read_text("NCCL_NVLS_ENABLE"))) may_not = "NCCL_NVLS_ENABLE=0";
  if (device_->in_switch.empty()) may_not = "this library has no kernels for that on its GPU";
  if (world_->ranks_on(device_) > 1) may_not = "several ranks share its GPU";
  return share_team(context_, *device_, plan.team_bytes, may_not, &team_);
}

bool CudaRank::can_run(const Program &program, const Call *call) const {
  if (world_ == nullptr) return true;
  const DevicePlan &plan = world_->plan();
  const auto number = static_cast<uint32_t>(&program - (context_.tables->programs + world_->allocation().first_program));
  if (!plan.in_switch[number]) return true;
  if (!team_.is_there()) return false;
  if (call == nullptr || !traits(call->collective).reduces) return true;
  const Reducing how = reducing(static_cast<uint32_t>(call->type), static_cast<uint32_t>(call->op.kind));
  return switch_reduces(how.kernel_type, how.operation);
}

}  // namespace collc::cuda
