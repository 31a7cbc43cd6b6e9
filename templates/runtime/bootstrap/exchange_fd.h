// Passes a file descriptor (shared memory) to other processes of this machine, while a communicator is created. The creating
// thread of each rank calls this, and blocks.
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

// The name of such a socket, which ranks exchange: random, and terminated by a zero.
struct SocketName {
  char text[64];
};
Status name_socket(SocketName *name);

// A socket in the abstract namespace (without an entry in the file system) that passes one descriptor on.
class FdServer {
 public:
  Status listen(const std::string &name);
  // Gives `fd` to one rank of each process that knows `secret` and belongs to this user; other callers are dropped. `owners`
  // has the number of each rank's process; `self` is a rank of this process. Blocks until all other processes have the
  // descriptor. Fails after `seconds`, naming the ranks that did not come, and when `stop`, which is polled, returns true.
  Status serve(int fd, const std::string &secret, const std::vector<uint64_t> &owners, uint32_t self, double seconds,
               const std::function<bool()> &stop);

 private:
  std::unique_ptr<Acceptor> acceptor_;
};

// Receives the descriptor from rank `owner`, whose server is called `name` and must belong to this user; this process asks as
// rank `rank`. Blocks for at most `seconds`. Fails when `stop` returns true.
Status fetch_fd(const std::string &name, uint32_t owner, const std::string &secret, uint32_t rank, double seconds,
                const std::function<bool()> &stop, int *fd);

}  // namespace collc
