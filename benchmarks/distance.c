// How far apart two cores are, again and again: every 20 ms a line with the time (seconds of the monotonic clock) and with the
// nanoseconds that a cache line takes to the other core and back, the least of some tries. It ends with its input. On a
// virtual machine the same two cores share a cache in one second and none in the next, so a benchmark has this beside it and
// asks afterwards what each of its times was measured at (distance.py).
//
// Where the system allows it, both threads go before all others, for some 20 us each time. Else there is no line while a core has
// more to do.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 2, kTries = 4, kTrips = 8 };
static const int64_t kEvery = 20000000, kPatience = 1000000;  // nanoseconds

static _Alignas(64) _Atomic uint64_t line;
static cpu_set_t allowed;
static int64_t start;

static int64_t nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1000000000 * (int64_t)time.tv_sec + time.tv_nsec;
}

static void place(int number) {
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && number-- == 0) CPU_SET(core, &one);
  const struct sched_param first = {.sched_priority = 1};
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
  pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
}

// Waits for the other core's store; 0: it did not come in time.
static int await(uint64_t value, int64_t until) {
  for (int spins = 1; atomic_load(&line) != value; ++spins)
    if (spins % 64 == 0 && nanoseconds() > until) return 0;
  return 1;
}

static void *run(void *which) {
  const int number = (int)(intptr_t)which;
  place(number);
  for (uint64_t turn = 1;; ++turn) {
    const int64_t at = start + (int64_t)turn * kEvery, until = at + kPatience;
    const struct timespec when = {at / 1000000000, at % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
    uint64_t value = turn << 16;
    int met = 1;
    int64_t least = INT64_MAX;
    for (int tried = 0; met && tried < kTries; ++tried) {
      const int64_t begin = nanoseconds();
      for (int trip = 0; met && trip < kTrips; ++trip, value += 2) {
        if (number == 0) atomic_store(&line, value + 1);
        met = await(value + 1 + (number == 0), until);
        if (number == 1 && met) atomic_store(&line, value + 2);
      }
      const int64_t spent = nanoseconds() - begin;
      if (spent < least) least = spent;
    }
    if (number != 0 || !met) continue;
    printf("%.4f %.0f\n", 1e-9 * (double)at, (double)least / kTrips);
    fflush(stdout);
  }
  return NULL;
}

int main(void) {
  pthread_t threads[kThreads];
  sched_getaffinity(0, sizeof allowed, &allowed);
  start = nanoseconds();
  for (int i = 0; i < kThreads && CPU_COUNT(&allowed) >= kThreads; ++i)
    if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i) != 0) return 1;
  char ignored[64];
  while (read(STDIN_FILENO, ignored, sizeof ignored) > 0) continue;
  exit(0);
}
