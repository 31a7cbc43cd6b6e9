// Runs work of a creation on a separate stream. Work without a stream waits for the kernels of other communicators, which may
// wait for ranks that are making this one.
#pragma once
#include "cuda/driver.h"

namespace collc::cuda {

template <class Body>
Status alone(const char *what, Body body) {
  const Driver &cu = driver();
  Stream stream = nullptr;
  COLLC_RETURN_IF_FAILED(check(cu.stream_create(&stream, kStreamNonBlocking), "making a stream"));
  const Result given = body(cu, stream);
  const Result done = cu.stream_synchronize(stream);  // also waits for work that was queued before a failure
  cu.stream_destroy(stream);
  return check(given != 0 ? given : done, what);
}

// Allocates device memory and fills it.
Status put_on_device(const void *data, size_t bytes, Address *at);

}  // namespace collc::cuda
