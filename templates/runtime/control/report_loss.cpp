#include "control/report_loss.h"

#include "base/log.h"
#include "plan/weights.h"

namespace collc {

bool report_loss(Losses &losses, uint32_t rank, uint32_t part, const std::string &why) {
  const uint64_t from = losses.lose(part);
  if (from == 0) return false;
  log(LogLevel::kWarn, "rank %u: %s has failed, %s: calls from call %llu on run without it", rank, class_name(part),
      why.c_str(), static_cast<unsigned long long>(from));
  return true;
}

}  // namespace collc
