// What `rep movsb` and memory clones could bring: `copies`, prints NAME,BYTES,MICROSECONDS.
//
// Two threads, one a core, each within its own memory on pages of 2 MiB: memcpy, `rep movsb`, and stores past the caches.
// Then clones: what a rank would have to do to give its buffer away without a copy. The buffer is a file in memory that both
// map privately, so that a later store of either is seen by neither; a reader maps it over its own buffer, and the owner maps
// a new file over its own before it stores there again. The time is that of the mapping, of reading every page of the clone
// and of writing every page of the owner's, which a job does before its next call; memcpy beside it copies, then reads and
// writes the same.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 2, kRounds = 9, kPage = 4096 };
static const size_t kMost = (size_t)64 << 20;

typedef void (*Copy)(char *to, const char *from, size_t bytes);
static pthread_barrier_t together;
static size_t bytes;
static int calls;
static Copy way;
static double spent[kThreads];

static double microseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void plain(char *to, const char *from, size_t n) { memcpy(to, from, n); }

static void rep_movsb(char *to, const char *from, size_t n) {
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static void streamed(char *to, const char *from, size_t n) {
  for (size_t at = 0; at < n; at += 16)
    _mm_stream_si128((__m128i *)(void *)(to + at), _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
  _mm_sfence();
}

static void *run(void *which) {
  const int number = (int)(intptr_t)which;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(number, &one);
  sched_setaffinity(0, sizeof one, &one);
  char *const memory = aligned_alloc(2 << 20, 2 * kMost);
  if (memory == NULL) fail("memory");
  madvise(memory, 2 * kMost, MADV_HUGEPAGE);
  memset(memory, 1, 2 * kMost);
  for (;;) {
    pthread_barrier_wait(&together);
    if (way == NULL) break;
    way(memory + kMost, memory, bytes);
    pthread_barrier_wait(&together);
    const double begin = microseconds();
    for (int i = 0; i < calls; ++i) way(memory + kMost, memory, bytes);
    spent[number] = (microseconds() - begin) / calls;
    pthread_barrier_wait(&together);
  }
  free(memory);
  return NULL;
}

static char *map_file(int file, void *at) {
  const int flags = MAP_PRIVATE | (at != NULL ? MAP_FIXED : 0);
  char *const found = mmap(at, kMost, PROT_READ | PROT_WRITE, flags, file, 0);
  if (found == MAP_FAILED) fail("mmap");
  return found;
}

static int new_file(void) {
  const int file = memfd_create("clone", 0);
  if (file < 0 || ftruncate(file, (off_t)kMost) != 0) fail("memfd");
  return file;
}

static uint64_t read_pages(const char *at) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += 64) sum += *(const volatile uint64_t *)(const void *)(at + i);
  return sum;
}

static void write_pages(char *at) { memset(at, 2, bytes); }

// Of one thread: the owner's part and the reader's one after the other.
static double clone_once(void) {
  const int file = new_file();
  char *const filled = mmap(NULL, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (filled == MAP_FAILED) fail("mmap");
  memset(filled, 1, bytes);
  munmap(filled, kMost);
  char *const owner = map_file(file, NULL), *const reader = map_file(file, NULL);
  read_pages(owner);
  const double begin = microseconds();
  map_file(file, reader);
  read_pages(reader);
  write_pages(owner);
  const double end = microseconds();
  munmap(owner, kMost);
  munmap(reader, kMost);
  close(file);
  return end - begin;
}

static double copy_once(void) {
  static char *memory;
  if (memory == NULL) {
    memory = aligned_alloc(2 << 20, 2 * kMost);
    if (memory == NULL) fail("memory");
    madvise(memory, 2 * kMost, MADV_NOHUGEPAGE);
    memset(memory, 1, 2 * kMost);
  }
  const double begin = microseconds();
  memcpy(memory + kMost, memory, bytes);
  read_pages(memory + kMost);
  write_pages(memory);
  return microseconds() - begin;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print(const char *name, double *times) {
  qsort(times, kRounds, sizeof *times, ascending);
  printf("%s,%zu,%.2f\n", name, bytes, times[kRounds / 2]);
}

int main(void) {
  static const struct {
    const char *name;
    Copy copy;
  } ways[] = {{"memcpy", plain}, {"rep movsb", rep_movsb}, {"past the caches", streamed}};
  static const size_t sizes[] = {64 << 10, 1 << 20, 16 << 20, 64 << 20};
  enum { kWays = sizeof ways / sizeof *ways, kSizes = sizeof sizes / sizeof *sizes };
  pthread_barrier_init(&together, NULL, kThreads + 1);
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i)
    if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i) != 0) fail("thread");
  for (int s = 0; s < kSizes; ++s) {
    double times[kWays + 2][kRounds];
    bytes = sizes[s];
    calls = (int)((8u << 20) / bytes) + 1;
    for (int round = 0; round < kRounds; ++round) {
      for (int w = 0; w < kWays; ++w) {
        way = ways[w].copy;
        for (int turn = 0; turn < 3; ++turn) pthread_barrier_wait(&together);
        times[w][round] = spent[0] > spent[1] ? spent[0] : spent[1];
      }
      times[kWays][round] = copy_once();
      times[kWays + 1][round] = clone_once();
    }
    for (int w = 0; w < kWays; ++w) print(ways[w].name, times[w]);
    print("memcpy and use", times[kWays]);
    print("clone and use", times[kWays + 1]);
  }
  way = NULL;
  pthread_barrier_wait(&together);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  return 0;
}
