// Handing a file descriptor to other processes of this machine.
#pragma once
#include <functional>
#include <string>

#include "status.h"

namespace collc {

// A socket in the abstract namespace (nothing in the file system) that hands out one descriptor.
class FdServer {
 public:
  FdServer() = default;
  ~FdServer();
  FdServer(const FdServer &) = delete;
  FdServer &operator=(const FdServer &) = delete;

  Status listen(const std::string &name);
  // Gives `fd` to `clients` processes of this user that know `secret`; others are dropped. `stop` is polled.
  Status serve(int fd, const std::string &secret, uint32_t clients, const std::function<bool()> &stop);

 private:
  int socket_ = -1;
};

// Receives the descriptor from the server called `name`.
Status fetch_fd(const std::string &name, const std::string &secret, const std::function<bool()> &stop, int *fd);

}  // namespace collc
