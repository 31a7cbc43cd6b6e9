#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace collc {
namespace {

constexpr off_t kMostBytes = 16 << 20;

}  // namespace

Status read_small_file(const char *path, std::string *text) {
  // Opens without blocking, because the open of a named pipe without a writer would block the creation of the communicator.
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return fail_errno("cannot be opened", errno);
  struct stat facts;
  Status status;
  if (fstat(fd, &facts) != 0)
    status = fail_errno("cannot be read", errno);
  else if (!S_ISREG(facts.st_mode))
    status = fail(ncclInvalidUsage, "is no regular file");
  else if (facts.st_size > kMostBytes)
    status = fail(ncclInvalidUsage, "has more than %d MiB", static_cast<int>(kMostBytes >> 20));
  char buffer[1 << 14];
  while (status.ok()) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = fail_errno("cannot be read", errno);
    if (got <= 0) break;
    text->append(buffer, static_cast<size_t>(got));
    if (text->size() > static_cast<size_t>(kMostBytes)) status = fail(ncclInvalidUsage, "grows while it is read");
  }
  close(fd);
  return status;
}

}  // namespace collc
