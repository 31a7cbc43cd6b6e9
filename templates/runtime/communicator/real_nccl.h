// The real NCCL, which takes the communicators that the plan does not serve.
#pragma once
#include <string>

#include "base/log.h"

namespace collc {

// Looks for it once: COLLC_NCCL (a path), else libnccl.so.2 where the loader finds it. Null if there is none, or if it
// lacks the function.
void *find_real(const char *function);

bool have_real();

// Returns the path of the real NCCL, or the reason why there is none.
std::string describe_real();

// Returns the reason why find_real() returned null.
std::string describe_missing();

// Calls a function of the real NCCL; ncclInvalidUsage if there is none.
template <class... Parameters, class... Arguments>
ncclResult_t call_real(ncclResult_t (*)(Parameters...), const char *function, Arguments... arguments) {
  void *found = find_real(function);
  if (found == nullptr) return report(fail(ncclInvalidUsage, "%s: %s", function, describe_missing().c_str()));
  return reinterpret_cast<ncclResult_t (*)(Parameters...)>(found)(arguments...);
}

}  // namespace collc
