/* A rank that is stopped in the middle of writing into another's output, and goes on after the call has failed there: it
 * must not touch what the other has put into its buffer since. Two processes; COLLC_TIMEOUT says when the call fails.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch.h"

enum { COUNT = 1 << 18, PAGE = 4096, PATTERN = 0x5a };
static const size_t bytes = COUNT * sizeof(float);
static unsigned char *walls; /* the output of the rank that stops */
static int told[2], done[2];

static unsigned char *allocate(void) {
  void *memory = NULL;
  check(ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
  return memory;
}

/* Rank 0 writes into its output and into that of rank 1 at the same time; the wall stops it in between. */
static void at_wall(int signal_number) {
  const pid_t me = getpid();
  (void)signal_number;
  mprotect(walls, bytes, PROT_READ | PROT_WRITE);
  if (write(told[1], &me, sizeof me) != sizeof me) _exit(3);
  raise(SIGSTOP);
}

static size_t body(int rank, ncclUniqueId id) {
  unsigned char *input = allocate(), *output = allocate();
  ncclComm_t comm;
  ncclResult_t result;
  size_t i;
  char word = 0;
  pid_t other = 0;
  check(ncclCommInitRank(&comm, 2, id, rank), "ncclCommInitRank");
  for (i = 0; i < COUNT; ++i) ((float *)input)[i] = 1;
  for (i = 0; i < 8; ++i) /* the first calls find out that all have buffers to offer */
    check(ncclAllReduce(input, output, COUNT, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
  if (rank == 0) {
    walls = output;
    signal(SIGSEGV, at_wall);
    mprotect(output + bytes / 4, PAGE, PROT_NONE);
    mprotect(output + bytes / 4 * 3, PAGE, PROT_NONE);
  }
  result = ncclAllReduce(input, output, COUNT, ncclFloat32, ncclSum, comm, NULL);
  require(result != ncclSuccess, "the call fails");
  if (rank == 0) {
    if (write(done[1], &word, 1) != 1) exit(3);
  } else {
    require(read(told[0], &other, sizeof other) == sizeof other, "rank 0 was stopped while it wrote");
    memset(output, PATTERN, bytes);
    kill(other, SIGCONT);
    require(read(done[0], &word, 1) == 1, "rank 0 has gone on");
    for (i = 0; i < bytes; ++i) require(output[i] == PATTERN, "what rank 1 wrote after the failure");
  }
  ncclCommAbort(comm);
  check(ncclMemFree(input), "ncclMemFree");
  check(ncclMemFree(output), "ncclMemFree");
  return bytes;
}

int main(void) {
  (void)run_threads;
  nranks = 2;
  if (pipe(told) != 0 || pipe(done) != 0) return 3;
  require(run_processes(body) == 2 * bytes, "both ranks");
  printf("untouched\n");
  return 0;
}
