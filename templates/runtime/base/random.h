// Random bytes from the kernel, for secrets and identifiers.
#pragma once
#include <cstddef>

#include "base/status.h"

namespace collc {

// Fills `data` with random bytes. Blocks only early at boot, before the kernel's generator is seeded.
Status random_bytes(void *data, size_t size);

}  // namespace collc
