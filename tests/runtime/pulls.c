/* Large broadcasts, whose ways the ranks learn: `pulls processes|threads RANKS ROOTS BYTES[,BYTES...]`. All sizes in turn, from ROOTS
 * roots in turn, in place and out of place, each between two all_reduces of 256 bytes; every byte is looked at. Prints for each size
 * how many bytes of its last half of the calls the kernel copied for rank 1, and how many it received.
 *
 * PULLS_SLOW=kernel|slots: this way takes longer than it does.
 * PULLS_REFUSE=1: the kernel copies nothing.
 * PULLS_KILL=root|reader: the first large copy by the kernel ends this process. The others print what a call returns then.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "launch.h"

enum { CALLS = 96, LARGE = 16 << 10, SMALL = 64, MOST_SIZES = 8 };

static int slow_kernel, slow_slots, refuse, kill_root, kill_reader, nroots, nsizes;
static size_t sizes[MOST_SIZES], most, copied_bytes;
static const unsigned char *inputs, *outputs; /* of this process */

/* Ranks wait for their cores as if each had one: as many as there are ranks. */
int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *set) {
  int r;
  (void)process;
  memset(set, 0, bytes);
  for (r = 0; r < 2 || r < nranks; ++r) CPU_SET(r, set);
  return 0;
}

/* In place of libc's. */
ssize_t process_vm_readv(pid_t process, const struct iovec *local, unsigned long nlocal, const struct iovec *remote,
                         unsigned long nremote, unsigned long flags) {
  ssize_t copied;
  if (refuse) {
    errno = EPERM;
    return -1;
  }
  if (remote->iov_len >= LARGE && (kill_root || kill_reader)) kill(kill_root ? process : getpid(), SIGKILL);
  if (slow_kernel && remote->iov_len >= LARGE) usleep((useconds_t)(remote->iov_len >> 6));
  copied = syscall(SYS_process_vm_readv, process, local, nlocal, remote, nremote, flags);
  if (copied >= LARGE) copied_bytes += (size_t)copied;
  return copied;
}

static int is_within(const void *at, const unsigned char *buffer) { return (uintptr_t)at - (uintptr_t)buffer < most; }

/* From the root's input into its output goes either way. */
void *memcpy(void *to, const void *from, size_t bytes) {
  if (slow_slots && bytes >= LARGE && !(is_within(to, outputs) && is_within(from, inputs))) usleep((useconds_t)(bytes >> 6));
  return memmove(to, from, bytes);
}

static unsigned char given(size_t call, int root, size_t i) {
  return (unsigned char)(call * 31 + (size_t)root * 7 + i * 13 + (i >> 12));
}

static size_t body(int rank, ncclUniqueId id) {
  ncclComm_t comm;
  unsigned char *const in = malloc(most), *const out = malloc(most + 64);
  float small[SMALL] = {0};
  size_t call, i, pulled[MOST_SIZES] = {0}, received[MOST_SIZES] = {0};
  int s;
  inputs = in, outputs = out;
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  for (call = 0; call < CALLS; ++call) {
    const int root = (int)(call % (size_t)nroots), in_place = call % 3 == 0;
    for (s = 0; s < nsizes; ++s) {
      unsigned char *const from = in_place ? out : in;
      ncclResult_t result;
      size_t before;
      memset(out, 0xa5, sizes[s] + 64);
      for (i = 0; rank == root && i < sizes[s]; ++i) from[i] = given(call, root, i);
      check(ncclAllReduce(small, small, SMALL, ncclFloat, ncclSum, comm, NULL), "ncclAllReduce");
      before = copied_bytes;
      result = ncclBroadcast(from, out, sizes[s], ncclUint8, root, comm, NULL);
      if (kill_root || kill_reader) {
        if (result == ncclSuccess) result = ncclAllReduce(small, small, SMALL, ncclFloat, ncclSum, comm, NULL);
        if (result == ncclSuccess) continue;
        printf("%d\n", (int)result);
        check(ncclCommAbort(comm), "ncclCommAbort");
        return 0;
      }
      check(result, "ncclBroadcast");
      if (call >= CALLS / 2 && root != rank) pulled[s] += copied_bytes - before, received[s] += sizes[s];
      for (i = 0; rank == root && !in_place && i < sizes[s]; ++i) in[i] = 0; /* it is the caller's again */
      check(ncclAllReduce(small, small, SMALL, ncclFloat, ncclSum, comm, NULL), "ncclAllReduce");
      for (i = 0; i < sizes[s]; ++i) require(out[i] == given(call, root, i), "what was sent");
      for (; i < sizes[s] + 64; ++i) require(out[i] == 0xa5, "what stands behind it");
    }
  }
  for (s = 0; s < nsizes && rank == 1; ++s) printf("%lu %lu\n", (unsigned long)pulled[s], (unsigned long)received[s]);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  free(in), free(out);
  return 0;
}

int main(int argc, char **argv) {
  const char *const slow = getenv("PULLS_SLOW"), *const killed = getenv("PULLS_KILL");
  char *word;
  if (argc != 5) return 2;
  nranks = atoi(argv[2]), nroots = atoi(argv[3]);
  for (word = strtok(argv[4], ","); word != NULL && nsizes < MOST_SIZES; word = strtok(NULL, ",")) {
    sizes[nsizes] = strtoul(word, NULL, 10);
    if (sizes[nsizes] > most) most = sizes[nsizes];
    ++nsizes;
  }
  slow_kernel = slow != NULL && strcmp(slow, "kernel") == 0;
  slow_slots = slow != NULL && strcmp(slow, "slots") == 0;
  kill_root = killed != NULL && strcmp(killed, "root") == 0;
  kill_reader = killed != NULL && strcmp(killed, "reader") == 0;
  refuse = getenv("PULLS_REFUSE") != NULL;
  return (int)(strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body));
}
