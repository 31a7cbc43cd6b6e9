// Handing a file descriptor to other processes of this machine.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/acceptor.h"
#include "base/status.h"

namespace collc {

// The request in the hello of a rank of this machine (greeting.h): to be admitted as this rank.
struct RankHello {
  uint32_t rank;
};

// The name of such a socket for other ranks: random, and it ends with a zero.
struct SocketName {
  char text[64];
};
Status name_socket(SocketName *name);

// A socket in the abstract namespace (nothing in the file system) that hands out one descriptor.
class FdServer {
 public:
  Status listen(const std::string &name);
  // Gives `fd` to one rank of each process that knows `secret` and is of this user; others are dropped. `owners` has a
  // number of its process for each rank; this one is rank `self`. Ends after `seconds`, naming the ranks that did not
  // come, or when `stop`, which is polled, turns true.
  Status serve(int fd, const std::string &secret, const std::vector<uint64_t> &owners, uint32_t self, double seconds,
               const std::function<bool()> &stop);

 private:
  std::unique_ptr<Acceptor> acceptor_;
};

// Receives the descriptor from rank `owner`, whose server is called `name` and is of this user, as rank `rank`; within
// `seconds`, or until `stop` turns true.
Status fetch_fd(const std::string &name, uint32_t owner, const std::string &secret, uint32_t rank, double seconds,
                const std::function<bool()> &stop, int *fd);

}  // namespace collc
