/* Limits of the process end calls with an error line, never the process: a communicator, a buffer and an all_reduce under a limit of the
 * size of files. Arguments: ranks; bytes. Prints what became of the communicator and of the buffers.
 */
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int run_rank(int rank, int nranks, ncclUniqueId id) {
  float in[64] = {0}, out[64];
  void *buffer = NULL;
  ncclComm_t comm = NULL;
  ncclResult_t made;
  sigset_t waiting;
  check(ncclMemAlloc(&buffer, 1 << 20), "ncclMemAlloc"); /* private memory, where it cannot be shared */
  memset(buffer, 1, 1 << 20);
  made = ncclCommInitRank(&comm, nranks, id, rank);
  sigpending(&waiting);
  require(!sigismember(&waiting, SIGXFSZ), "no signal is left");
  if (made != ncclSuccess) {
    fprintf(stderr, "%d: %s\n", (int)made, ncclGetLastError(NULL));
  } else {
    check(ncclAllReduce(in, out, 64, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
    check(ncclCommDestroy(comm), "ncclCommDestroy");
  }
  check(ncclMemFree(buffer), "ncclMemFree");
  return made == ncclSuccess ? 0 : 2;
}

int main(int argc, char **argv) {
  const int nranks = atoi(argv[1]);
  const struct rlimit limit = {(rlim_t)atoll(argv[2]), (rlim_t)atoll(argv[2])};
  ncclUniqueId id;
  int rank, refused = 0;
  (void)argc;
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  for (rank = 0; rank < nranks; ++rank)
    if (fork() == 0) _exit(run_rank(rank, nranks, id));
  for (rank = 0; rank < nranks; ++rank) {
    int status = 0;
    wait(&status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 1) return 1;
    refused += WEXITSTATUS(status) == 2;
  }
  printf("%d refused\n", refused);
  return 0;
}
