#include "cuda/fill.h"

#include <algorithm>

namespace collc::cuda {

Status put_on_device(const void *data, size_t bytes, Address *at) {
  COLLC_RETURN_IF_FAILED(check(driver().allocate(at, std::max(bytes, size_t{16})), "allocating GPU memory"));
  if (bytes == 0) return {};
  return alone("copying the plan to the GPU",
               [&](const Driver &cu, Stream stream) { return cu.upload_async(*at, data, bytes, stream); });
}

}  // namespace collc::cuda
