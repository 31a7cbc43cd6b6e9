/* Large calls between processes with plain memory: the kernel copies, and a rank that comes late finds several chunks of its
 * peers, which come with one copy. In turn each rank is late.
 *
 *   ahead processes|threads NRANKS       threads read each other's memory themselves
 */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "launch.h"

enum { COUNT = 300007, ROUNDS = 12, CHUNK = 128 << 10 };

static int by_kernel, refused; /* refused: kernels that restrict tracing do not copy, and slots serve */
static size_t largest; /* bytes of one copy */

/* In place of libc's. */
ssize_t process_vm_readv(pid_t process, const struct iovec *local, unsigned long nlocal, const struct iovec *remote,
                         unsigned long nremote, unsigned long flags) {
  const ssize_t copied = syscall(SYS_process_vm_readv, process, local, nlocal, remote, nremote, flags);
  if (copied > 0 && (size_t)copied > largest) largest = (size_t)copied;
  if (copied < 0 && (errno == EPERM || errno == ENOSYS)) refused = 1;
  return copied;
}

/* The sum over all ranks is what rank n(n+1)/2 - 1 would give. */
static int given(int rank, int round, size_t i) { return ((int)(i % 1009) + round * 1013) * (rank + 1); }

static size_t body(int rank, ncclUniqueId id) {
  int *input = malloc(COUNT * sizeof *input), *output = malloc((size_t)nranks * COUNT * sizeof *output);
  int *const mine = output + (size_t)rank * COUNT;
  ncclComm_t comm = NULL;
  size_t checked = 0, i;
  int round, r;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (round = 0; round < ROUNDS; ++round) {
    const int in_place = round / nranks % 2;
    int *const from = in_place ? mine : input;
    memset(output, 0xa5, (size_t)nranks * COUNT * sizeof *output);
    for (i = 0; i < COUNT; ++i) from[i] = given(rank, round, i);
    if (round % nranks == rank) usleep(20000);
    check(ncclAllGather(from, output, COUNT, ncclInt32, comm, NULL), "ncclAllGather");
    for (r = 0; r < nranks; ++r)
      for (i = 0; i < COUNT; ++i, ++checked)
        require(output[(size_t)r * COUNT + i] == given(r, round, i), "an element of an all_gather");

    for (i = 0; i < COUNT; ++i) input[i] = given(rank, round, i);
    if (round % nranks == rank) usleep(20000);
    check(ncclAllReduce(input, in_place ? input : output, COUNT, ncclInt32, ncclSum, comm, NULL), "ncclAllReduce");
    for (i = 0; i < COUNT; ++i, ++checked)
      require((in_place ? input : output)[i] == given(nranks * (nranks + 1) / 2 - 1, round, i), "an element of a sum");
  }
  require((largest > CHUNK) == (by_kernel && !refused), "chunks that came with one copy");
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  free(input), free(output);
  return checked;
}

int main(int argc, char **argv) {
  if (argc != 3 || (nranks = atoi(argv[2])) < 2) return 2;
  by_kernel = strcmp(argv[1], "processes") == 0;
  printf("%lu elements right\n", (unsigned long)(by_kernel ? run_processes(body) : run_threads(body)));
  return 0;
}
