/* all_reduces of 2 ranks whose inputs the kernel copies: every type and operation, sums with factors too, around the sizes where the way changes, out of
 * place, in place, and in place on one rank only. Prints a hash of all results, which both ranks have, and how many bytes
 * the kernel copied: one of its calls takes as many chunks as are there.
 *
 *   sums processes|threads all         every type and operation
 *   sums processes|threads borders     float32 sums of few sizes, with a line of copies for each
 *   sums processes|threads mixed       float32 sums of 64 KiB, each after one of 256 bytes, then each after two, up to 8: a line of
 *                                      copies for each number of these
 *   sums processes|threads programs    calls nothing: a line with the program of each size
 *
 * SUMS_LATE=RANK: this one is late with every copy, so that what the other stores too early is found.
 * SUMS_REFUSE=1: the kernel copies nothing.
 * SUMS_TURNS=1: the cores come near and go far again while calls run, each rank finds that out at another time.
 * SUMS_STRANGE=1: the largest and smallest of floating-point numbers are those of NaN and zeros of both signs.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "launch.h"

enum { MOST = 300 << 10, LATE_US = 1000, ROUNDS = 2, MIXED = 48, SMALL = 256, LARGE = 64 << 10 };

static int refuse, late = -1, me = -1;
static unsigned long copies; /* bytes; but for what a creation tries */

/* In place of libc's. */
ssize_t process_vm_readv(pid_t process, const struct iovec *local, unsigned long nlocal, const struct iovec *remote,
                         unsigned long nremote, unsigned long flags) {
  if (refuse) {
    errno = EPERM;
    return -1;
  }
  const int counts = remote->iov_len > sizeof(long);
  ssize_t copied;
  if (counts && late == me) usleep(LATE_US);
  copied = syscall(SYS_process_vm_readv, process, local, nlocal, remote, nremote, flags);
  if (counts && copied > 0) __atomic_fetch_add(&copies, (unsigned long)copied, __ATOMIC_RELAXED);
  return copied;
}

static const struct {
  ncclDataType_t type;
  size_t bytes;
} kTypes[] = {{ncclInt8, 1},    {ncclUint8, 1},    {ncclInt32, 4},      {ncclUint32, 4},
              {ncclInt64, 8},   {ncclUint64, 8},   {ncclFloat16, 2},    {ncclFloat32, 4},
              {ncclFloat64, 8}, {ncclBfloat16, 2}, {ncclFloat8e4m3, 1}, {ncclFloat8e5m2, 1}};
static const ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps}; /* the last: with a factor */

typedef struct {
  ncclComm_t comm;
  int rank;
  unsigned char *input, *output;
  unsigned int seed, hash;
} Run;

/* `in_place`: a bit for each rank. Positive numbers of any floating type. */
/* Zeros of both signs and NaN: in the largest and smallest of these shows which one came first. */
static int strange;

static void one(Run *run, ncclDataType_t type, ncclRedOp_t op, size_t bytes, size_t element, int in_place) {
  unsigned char *const from = in_place >> run->rank & 1 ? run->output : run->input;
  const int scaled = op == ncclNumOps;
  size_t i;
  memset(run->output, 0xa5, MOST + 64);
  for (i = 0; i < bytes; ++i) {
    run->seed = run->seed * 1664525u + 1013904223u;
    from[i] = (unsigned char)(run->seed >> 24 & 0x3f);
  }
  if (strange && type >= ncclFloat16 && (op == ncclMax || op == ncclMin))
    for (i = 0; i < bytes; i += element) {
      const int what = from[i] % 3;
      memset(from + i, what == 2 ? 0xff : 0, element);
      if (what == 1) from[i + element - 1] = 0x80;
    }
  if (scaled) {
    unsigned char factor[8];
    memset(factor, 0x31 + run->rank, sizeof factor);
    check(ncclRedOpCreatePreMulSum(&op, factor, type, ncclScalarHostImmediate, run->comm), "ncclRedOpCreatePreMulSum");
  }
  check(ncclAllReduce(from, run->output, bytes / element, type, op, run->comm, NULL), "ncclAllReduce");
  if (scaled) check(ncclRedOpDestroy(op, run->comm), "ncclRedOpDestroy");
  for (i = 0; i < bytes; ++i) run->hash = (run->hash ^ run->output[i]) * 16777619u;
  for (i = bytes; i < bytes + 64; ++i) require(run->output[i] == 0xa5, "what stands behind the result");
}

static int borders, mixed, programs, by_processes;
int collc_program_of(ncclComm_t comm, unsigned int collective, int root, unsigned long bytes);

static void run_mixed(Run *run) {
  int before_each, round, i;
  for (before_each = 1; before_each <= 8; ++before_each) {
    const unsigned long before = copies;
    for (round = 0; round < MIXED; ++round) {
      for (i = 0; i < before_each; ++i) one(run, ncclFloat32, ncclSum, SMALL, 4, 0);
      one(run, ncclFloat32, ncclSum, LARGE, 4, 0);
    }
    if (run->rank == 0) fprintf(stderr, "%d %lu\n", before_each, copies - before);
  }
}

static size_t body(int rank, ncclUniqueId id) {
  static const size_t all[] = {4088, 4096, 4104, 65528, 65536, 65544, 70008, 131080, 262136, 262144, 299992};
  Run run = {NULL, rank, malloc(MOST + 64), malloc(MOST + 64), 12345u + (unsigned int)rank, 2166136261u};
  unsigned int hashes[2];
  unsigned long before;
  size_t s, t, o;
  int in_place, round;
  if (by_processes) me = rank;
  if (getenv("SUMS_TURNS") != NULL) setenv("COLLC_CORES", rank == 0 ? "3" : "5", 1);
  check(ncclCommInitRank(&run.comm, nranks, id, rank), "ncclCommInitRank");
  if (mixed) run_mixed(&run);
  for (s = 0; s < sizeof all / sizeof *all && !mixed; ++s) {
    if (programs) {
      if (rank == 0) fprintf(stderr, "%lu %d\n", (unsigned long)all[s], collc_program_of(run.comm, 0, -1, all[s]));
      continue;
    }
    before = copies;
    for (in_place = 0; in_place < 4; ++in_place) {
      if (borders)
        for (round = 0; round < ROUNDS; ++round) one(&run, ncclFloat32, ncclSum, all[s], 4, in_place);
      else
        for (t = 0; t < sizeof kTypes / sizeof *kTypes; ++t)
          for (o = 0; o < sizeof kOps / sizeof *kOps; ++o)
            one(&run, kTypes[t].type, kOps[o], all[s], kTypes[t].bytes, in_place);
    }
    if (borders && rank == 0) fprintf(stderr, "%lu %lu\n", (unsigned long)all[s], copies - before);
  }
  hashes[rank] = run.hash;
  before = copies;
  check(ncclAllGather(hashes + rank, hashes, 1, ncclUint32, run.comm, NULL), "ncclAllGather");
  require(hashes[0] == hashes[1], "the same bits on both ranks");
  check(ncclCommDestroy(run.comm), "ncclCommDestroy");
  if (rank == 0) fprintf(stderr, "copies %lu\n", before);
  free(run.input), free(run.output);
  return rank == 0 ? hashes[0] : 0;
}

int main(int argc, char **argv) {
  const char *const wanted = getenv("SUMS_LATE");
  nranks = 2;
  if (argc != 3) return 2;
  borders = strcmp(argv[2], "borders") == 0;
  mixed = strcmp(argv[2], "mixed") == 0;
  programs = strcmp(argv[2], "programs") == 0;
  by_processes = strcmp(argv[1], "processes") == 0;
  if (wanted != NULL) late = atoi(wanted);
  refuse = getenv("SUMS_REFUSE") != NULL;
  strange = getenv("SUMS_STRANGE") != NULL;
  printf("%lx\n", (unsigned long)(by_processes ? run_processes(body) : run_threads(body)));
  return 0;
}
