// A file without a name (memfd) that the processes of a machine map: neither /dev/shm nor a common PID namespace is needed.
#pragma once
#include <vector>

#include "base/descriptor.h"
#include "executor/backend.h"

namespace collc::cuda {

struct SharedFile {
  const char *name;
  size_t bytes;
  std::vector<bool> takers;  // the NCCL ranks of this machine that need it; others get none
};

// A part of the file: it has no pages when it is shared. Running out of memory later would be a SIGBUS.
Status reserve(const Descriptor &file, size_t at, size_t bytes);

// Collective among the ranks of a communicator, while it is made: the first rank of each machine makes the file and hands it
// on over a local socket. `problem`: takes why there is none, on the rank that should make it, which then is no error; null:
// it is one.
Status share_file(const RankContext &context, const SharedFile &wanted, Descriptor *file, Status *problem);

}  // namespace collc::cuda
