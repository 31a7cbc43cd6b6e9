// Random numbers of the kernel.
#pragma once
#include <cstddef>

#include "base/status.h"

namespace collc {

// Fills `data` with random bytes of the kernel.
Status random_bytes(void *data, size_t size);

}  // namespace collc
