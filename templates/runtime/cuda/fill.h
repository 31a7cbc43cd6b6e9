// Work that creation gives to a GPU: on a stream of its own. What has no stream waits for the kernels of other communicators,
// which may wait for ranks that are just making this one.
#pragma once
#include "cuda/driver.h"

namespace collc::cuda {

template <class Body>
Status alone(const char *what, Body body) {
  const Driver &cu = driver();
  Stream stream = nullptr;
  COLLC_RETURN_IF_FAILED(check(cu.stream_create(&stream, kStreamNonBlocking), "making a stream"));
  const Result given = body(cu, stream);
  const Result done = cu.stream_synchronize(stream);  // also of what was given before something failed
  cu.stream_destroy(stream);
  return check(given != 0 ? given : done, what);
}

// Allocates device memory and fills it.
Status put_on_device(const void *data, size_t bytes, Address *at);

}  // namespace collc::cuda
