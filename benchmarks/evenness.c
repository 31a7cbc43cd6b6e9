// What this machine is worth at the moment: `evenness`, a tenth of a second. Prints four times in nanoseconds, medians of
// some: of a fixed computation on the slower of two cores, of a cache line that goes to another core and back (0 with one
// core), and of copies of 256 KiB (caches) and of 32 MiB (memory), two cores at a time. On a virtual machine all of them
// change by the second: its cores change speed, and their places.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { kThreads = 2, kTurns = 9, kMost = 99, kTrips = 200, kSmall = 256 << 10, kLarge = 32 << 20 };

static _Alignas(64) atomic_int line;
static _Alignas(64) atomic_int arrived;
static cpu_set_t allowed;
static double found[kThreads][4];
static int nthreads = kThreads;

static double nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void pin(int number) {
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && number-- == 0) CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
}

static void compute(void) {
  uint64_t value = 1;
  for (int i = 0; i < 100000; ++i) value = value * 6364136223846793005u + 1442695040888963407u;
  volatile uint64_t kept = value;
  (void)kept;
}

static void trade_line(int number) {
  for (int trip = 0; trip < kTrips; ++trip) {
    while (atomic_load(&line) != 2 * trip + number) continue;
    atomic_store(&line, number == 0 ? 2 * trip + 1 : 2 * trip + 2);
  }
}

// By spinning: a core that has slept has lost its caches on a virtual machine.
static void meet(int *met) {
  const int all = ++*met * nthreads;
  atomic_fetch_add(&arrived, 1);
  while (atomic_load(&arrived) < all) continue;
}

static void *run(void *which) {
  const int number = (int)(intptr_t)which;
  pin(number);
  char *const memory = aligned_alloc(2 << 20, 2 * (size_t)kLarge);
  if (memory == NULL) exit(1);
  madvise(memory, 2 * (size_t)kLarge, MADV_HUGEPAGE);
  memset(memory, 1, 2 * (size_t)kLarge);
  int met = 0;
  for (int what = 0; what < 4; ++what) {
    const int turns = what == 3 ? 3 : what == 2 ? kMost : kTurns;
    double times[kMost];
    for (int turn = 0; turn < turns; ++turn) {
      meet(&met);
      if (number == 0) atomic_store(&line, 0);
      meet(&met);
      const double begin = nanoseconds();
      if (what == 0) compute();
      if (what == 1 && nthreads > 1) trade_line(number);
      if (what == 2) memcpy(memory + kLarge, memory, kSmall);
      if (what == 3) memcpy(memory + kLarge, memory, kLarge);
      times[turn] = nanoseconds() - begin;
    }
    qsort(times, (size_t)turns, sizeof times[0], ascending);
    found[number][what] = what == 1 ? times[turns / 2] / kTrips : times[turns / 2];
  }
  free(memory);
  return NULL;
}

int main(void) {
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) < nthreads) nthreads = 1;
  pthread_t other;
  if (nthreads > 1 && pthread_create(&other, NULL, run, (void *)(intptr_t)1) != 0) return 1;
  run((void *)(intptr_t)0);
  if (nthreads > 1) pthread_join(other, NULL);
  for (int what = 0; what < 4; ++what) {
    double most = 0;
    for (int number = 0; number < nthreads; ++number)
      if (found[number][what] > most) most = found[number][what];
    printf("%.0f%s", what == 1 && nthreads == 1 ? 0 : most, what < 3 ? " " : "\n");
  }
  return 0;
}
