// One benchmark for every library that reduces float32 between processes of one machine: MPI (compile with -DWITH_MPI and
// the library's mpicc), oneCCL (as C++ with -DWITH_MPI -DWITH_CCL), or whatever speaks the NCCL API on host memory (link
// with the library).
//
// With -DREFERENCE it needs no library: it is one of the references of references.h. With -DBESIDE beside -DWITH_MPI and a
// library with the NCCL API, the same processes call both in turn: beside.h.
//
//   peerbench NAME RANKS SECONDS [COLLECTIVE:]SIZES [threads|memalloc|two-copies|kernel|halves] [small-pages]
//
// SIZES: bytes, separated by commas. COLLECTIVE: only this one. Under MPI the launcher starts RANKS processes; else they are
// forked here, or are threads of this process. memalloc: buffers from ncclMemAlloc; two-copies, kernel, halves: these references.
//
// A sample is a batch of back-to-back calls after a barrier, timed by the slowest rank. Printed is the median over
// the samples of SECONDS seconds (at least 9; of slow calls, at least 3 in six times as long):
// NAME,collective,ranks,bytes,median_us,p10_us,p90_us,samples,check,begin,end. Begin and end of the samples are seconds of the monotonic clock.
// `bytes` are nccl-tests': what each rank holds of all_reduce and broadcast, what it receives in all_gather, what it gives
// in reduce_scatter. Roots of broadcasts rotate. Buffers are private memory of the process, on 2 MiB pages where there are
// and small-pages does not forbid them (`-` in place of the fifth argument: as without it).
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if !defined(WITH_MPI) || defined(BESIDE)
#define BY_MEMORY  // the benchmark's own barriers
#include <pthread.h>

#ifndef REFERENCE
#include "nccl.h"
#endif
#endif

#ifdef __cplusplus
#define PER_RANK thread_local
#else
#define PER_RANK _Thread_local
#endif

enum { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kCollectives, kMostSamples = 400 };
static const char *const kNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter"};

static int nranks;
static PER_RANK int rank;
static PER_RANK float *input, *output;
static size_t sizes[32], most;
static int nsizes, small_pages;

static double seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(const char *what) {
  fprintf(stderr, "peerbench: %s\n", what);
  exit(1);
}

#ifdef WITH_MPI
#include "mpi_peer.h"
#endif

#ifndef BY_MEMORY

static void start(int argc, char **argv) { start_mpi(argc, argv); }
static void join(void) {}
static void finish(void) { MPI_Finalize(); }
static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

// The largest value of any rank.
static double largest(double value) {
  double result;
  MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

static void call(int collective, size_t count, int root) { call_mpi(collective, count, root); }

#else

// These lines synchronize the clocks of the benchmark, not the library.
static struct Shared {
  __attribute__((aligned(64))) int arrived;
  __attribute__((aligned(64))) int round;
  __attribute__((aligned(64))) double values[64];
#ifndef REFERENCE
  ncclUniqueId id;
#endif
} *shared;
#ifndef REFERENCE
static PER_RANK ncclComm_t communicator;
static void require(ncclResult_t result) {
  if (result != ncclSuccess) fail(ncclGetLastError(NULL));
}
#endif
static int as_threads, from_memalloc, crowded;
static void run_rank(void);

#ifndef BESIDE
static void *thread(void *number) {
  rank = (int)(intptr_t)number;
  run_rank();
  return NULL;
}
#endif

static void barrier(void) {
  const int round = __atomic_load_n(&shared->round, __ATOMIC_ACQUIRE);
  if (__atomic_fetch_add(&shared->arrived, 1, __ATOMIC_SEQ_CST) + 1 == nranks) {
    __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->round, round + 1, __ATOMIC_RELEASE);
  }
  for (int spins = 0; __atomic_load_n(&shared->round, __ATOMIC_ACQUIRE) == round; ++spins)
    if (crowded || spins > 20000) sched_yield();
}

static double largest(double value) {
  shared->values[rank] = value;
  barrier();
  for (int r = 0; r < nranks; ++r)
    if (shared->values[r] > value) value = shared->values[r];
  barrier();
  return value;
}

static void stay_on_a_core(void) {
  if (crowded) return;  // as MPI libraries do by themselves
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank, &set);
  sched_setaffinity(0, sizeof set, &set);
}

#ifdef REFERENCE
#include "references.h"
#endif

#ifdef BESIDE
#include "beside.h"
#else

// The ranks are started here.
static void start(int argc, char **argv) {
  crowded = nranks > sysconf(_SC_NPROCESSORS_ONLN);
  as_threads = argc >= 6 && strcmp(argv[5], "threads") == 0;
  from_memalloc = argc >= 6 && strcmp(argv[5], "memalloc") == 0;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || nranks > 64) fail("no memory, or more than 64 ranks");
#ifdef REFERENCE
  map_shared(argc >= 6 ? argv[5] : "");
#else
  require(ncclGetUniqueId(&shared->id));
#endif
  // The parent only waits: the id's socket is served by the process that made it, which must also be rank 0.
  for (int r = 1; r < nranks && rank == 0; ++r) {
    pthread_t unused;
    if (as_threads && pthread_create(&unused, NULL, thread, (void *)(intptr_t)r) != 0) fail("no thread");
    if (!as_threads && fork() == 0) rank = r;
  }
}

static void join(void) {
  stay_on_a_core();
#ifndef REFERENCE
  require(ncclCommInitRank(&communicator, nranks, shared->id, rank));
#endif
}

static void finish(void) {
  barrier();
#ifndef REFERENCE
  require(ncclCommDestroy(communicator));
#endif
  if (rank == 0)
    while (!as_threads && wait(NULL) > 0) continue;
  if (as_threads) barrier();  // the process ends with rank 0
}

#endif

#ifndef REFERENCE

static void call_nccl(int collective, size_t count, int root) {
  const size_t part = count / (size_t)nranks;
  ncclResult_t result = ncclSuccess;
  if (collective == kAllReduce) result = ncclAllReduce(input, output, count, ncclFloat, ncclSum, communicator, NULL);
  if (collective == kBroadcast) result = ncclBroadcast(output, output, count, ncclFloat, root, communicator, NULL);
  if (collective == kAllGather) result = ncclAllGather(input, output, part, ncclFloat, communicator, NULL);
  if (collective == kReduceScatter) result = ncclReduceScatter(input, output, part, ncclFloat, ncclSum, communicator, NULL);
  require(result);
}

static void call(int collective, size_t count, int root) {
#ifdef BESIDE
  if (theirs) {
    call_mpi(collective, count, root);
    return;
  }
#endif
  call_nccl(collective, count, root);
}

#endif
#endif

static float *buffer(size_t bytes) {
  const size_t page = 2u << 20;
  bytes = (bytes + page - 1) / page * page;
#ifdef REFERENCE
  if (!two_copies && !by_kernel) return input == NULL ? inputs[rank] : outputs[rank];
#elif !defined(WITH_MPI)
  if (from_memalloc) {
    void *allocated = NULL;
    require(ncclMemAlloc(&allocated, bytes));
    return (float *)allocated;
  }
#endif
  void *memory = aligned_alloc(page, bytes);
  if (memory == NULL) fail("out of memory");
  madvise(memory, bytes, small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  return (float *)memory;
}

static float given(int r, size_t i) { return (float)(r + 1) + (float)(i % 7); }

// Runs the collective once on known values; true if every element that this rank gets is right.
static int right(int collective, size_t count) {
  const size_t part = count / (size_t)nranks;
  for (size_t i = 0; i < count; ++i) {
    input[i] = given(rank, i);
    output[i] = collective == kBroadcast && rank == 0 ? given(0, i) : -1;
  }
  call(collective, count, 0);
  const float ranks = (float)nranks, base = ranks * (ranks + 1) / 2;
  const size_t mine = collective == kReduceScatter ? part : count;
  for (size_t i = 0; i < mine; ++i) {
    float expected = given(0, i);
    if (collective == kAllReduce) expected = base + ranks * (float)(i % 7);
    if (collective == kAllGather && i / part < (size_t)nranks) expected = given((int)(i / part), i % part);
    if (collective == kAllGather && i / part >= (size_t)nranks) expected = -1;
    if (collective == kReduceScatter) expected = base + ranks * (float)(((size_t)rank * part + i) % 7);
    if (output[i] != expected) return 0;
  }
  return 1;
}

static double sample(int collective, size_t count, long calls) {
  barrier();
  const double begin = seconds();
  for (long i = 0; i < calls; ++i) call(collective, count, (int)(i % nranks));
  return largest((seconds() - begin) / (double)calls);
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Calls of a batch of some `length` seconds; every rank is root equally often.
static long batch_of(int collective, size_t count, double length) {
  long calls = 2;
  double time = 0;
  for (int round = 0; round < 2 && time < 0.01; ++round) {
    time = sample(collective, count, calls);
    calls = time > 0 ? (long)(length / time) : 1;
    if (calls > 8000) calls = 8000;
    calls = (calls / nranks + 1) * nranks;
  }
  return calls == nranks && time > 0.004 && nranks >= 4 && collective != kBroadcast ? 2 : calls;
}

#ifndef BESIDE

static void measure(const char *name, int collective, size_t bytes, double budget) {
  const size_t count = bytes / sizeof(float);
  const int wrong = (int)largest(right(collective, count) ? 0 : 1);
  memset(input, 0, bytes);
  memset(output, 0, bytes);
  const long calls = batch_of(collective, count, 0.008);
  double times[kMostSamples];
  int n = 0;
  const double begin = seconds();
  double end = begin;
  for (int more = 1; more && n < kMostSamples;) {
    times[n++] = sample(collective, count, calls);
    end = seconds();
    const double spent = largest(end - begin);
    more = n < 3 || (n < 9 ? spent < 6 * budget : spent < budget);
  }
  qsort(times, (size_t)n, sizeof times[0], ascending);
  if (rank == 0)
    printf("%s,%s,%d,%zu,%.3f,%.3f,%.3f,%d,%s,%.4f,%.4f\n", name, kNames[collective], nranks, bytes, 1e6 * times[n / 2],
           1e6 * times[n / 10], 1e6 * times[n * 9 / 10], n, wrong ? "WRONG" : "ok", begin, end);
  fflush(stdout);
}

#else

// Both in turn; which of the two comes first changes from round to round. A line for each round, with the time of a call of
// the library and of its peer.
static void measure(const char *name, int collective, size_t bytes, double budget) {
  const size_t count = bytes / sizeof(float);
  long calls[2];
  int wrong = 0;
  for (theirs = 0; theirs < 2; ++theirs) {
    wrong |= right(collective, count) ? 0 : 1 << theirs;
    memset(input, 0, bytes);
    memset(output, 0, bytes);
    calls[theirs] = batch_of(collective, count, crowded ? 0.008 : 0.002);
  }
  wrong = (int)largest(wrong);
  const double start = seconds();
  int behind = 0;  // rounds where the peer took over 2.5 times as long
  for (int round = 0, more = 1; more; ++round) {
    double times[2];
    const double begin = seconds();
    for (int turn = 0; turn < 2; ++turn) {
      theirs = turn ^ (round & 1);
      call(collective, count, 0);
      times[theirs] = sample(collective, count, calls[theirs]);
    }
    const double end = seconds();
    if (rank == 0)
      printf("%s,%s,%d,%zu,%.3f,%.3f,%s,%.4f,%.4f\n", name, kNames[collective], nranks, bytes, 1e6 * times[0], 1e6 * times[1],
             wrong ? wrong == 1 ? "OURS WRONG" : "WRONG" : "ok", begin, end);
    behind += times[1] > 2.5 * times[0];
    const double spent = largest(end - start);
    more = round < 3 || (behind < round && (round < 9 ? spent < 8 * budget : spent < budget));
  }
  fflush(stdout);
}

#endif

static const char *name;
static double budget;
static int only = -1;  // the collective that runs; -1: all

static void run_rank(void) {
  join();
  input = buffer(most);
  output = buffer(most);
#ifdef REFERENCE
  if (by_kernel) {
    peers[rank].process = getpid(), peers[rank].input = input, peers[rank].output = output;
    barrier();
  }
#endif
  for (int collective = 0; collective < kCollectives; ++collective)
    for (int s = 0; (only < 0 || only == collective) && s < nsizes; ++s) measure(name, collective, sizes[s], budget);
  finish();
}

int main(int argc, char **argv) {
  static const char usage[] =
      "usage: peerbench NAME RANKS SECONDS [COLLECTIVE:]SIZES [threads|memalloc|two-copies|kernel|halves] [small-pages]";
  if (argc < 5 || argc > 7 || (argc == 7 && strcmp(argv[6], "small-pages") != 0)) fail(usage);
  small_pages = argc == 7;
  name = argv[1];
  nranks = atoi(argv[2]);
  budget = atof(argv[3]);
  char *list = argv[4], *const colon = strchr(list, ':');
  if (colon != NULL) {
    *colon = 0;
    for (int c = 0; c < kCollectives; ++c)
      if (strcmp(kNames[c], list) == 0) only = c;
    if (only < 0) fail(usage);
    list = colon + 1;
  }
  for (char *text = strtok(list, ","); text != NULL && nsizes < 32; text = strtok(NULL, ",")) {
    sizes[nsizes] = strtoull(text, NULL, 10);
    if (sizes[nsizes] > most) most = sizes[nsizes];
    ++nsizes;
  }
  if (nranks < 2 || budget <= 0 || nsizes == 0) fail(usage);
  start(argc, argv);
  run_rank();
  return 0;
}
