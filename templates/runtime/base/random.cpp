#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

namespace collc {

Status random_bytes(void *data, size_t size) {
  if (getrandom(data, size, 0) != static_cast<ssize_t>(size)) return fail_errno("no random numbers", errno);
  return {};
}

}  // namespace collc
