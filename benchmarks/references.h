// References for the host target: simple programs that know only their ranks. They are no lower bounds: they copy with memcpy, and
// every barrier is one counter.
//
// A single copy: all ranks see all buffers, and between two barriers each rank reads the data that it needs and writes them to
// their place. Ranks are threads with private memory, or processes that have mapped shared memory.
//
// Two copies, for private buffers of processes: each rank copies its input into memory that all ranks have mapped, and copies the
// data that it needs out of it, one or two barriers apart, 1 MiB at a time (in a broadcast 512 KiB, so that the root continues).
// In an all_reduce each rank sums its part of every piece in between.
//
// The kernel copies, for private buffers of processes: in a broadcast or an all_gather each rank reads with one call for each
// peer, between two barriers. In halves: in a broadcast between two ranks the root meanwhile writes the second half into the
// reader's memory. No library could do this: a reader that gives up gets its buffer back, and nobody can stop that store.
#pragma once
#include <immintrin.h>
#include <sys/uio.h>

enum { kPiece = 1 << 18, kHalf = kPiece / 2 };  // elements that a rank stages at a time

static int two_copies, by_kernel, in_halves;
static float *inputs[64], *outputs[64];  // of a single copy
static float *staged[64], *result;  // of two copies
static struct {
  pid_t process;
  float *input, *output;
} *peers;  // where the kernel copies

static float *map_one(size_t bytes) {
  const int whose = as_threads ? MAP_PRIVATE : MAP_SHARED;
  float *const at = (float *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, whose | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("out of memory");
  madvise(at, bytes, MADV_HUGEPAGE);
  return at;
}

static void map_shared(const char *which) {
  const int two = strcmp(which, "two-copies") == 0;
  in_halves = strcmp(which, "halves") == 0 && nranks == 2;
  two_copies = two;
  by_kernel = in_halves || strcmp(which, "kernel") == 0;
  if (by_kernel) {
    const int shared_by_all = MAP_SHARED | MAP_ANONYMOUS;
    void *const at = mmap(NULL, 64 * sizeof *peers, PROT_READ | PROT_WRITE, shared_by_all, -1, 0);
    if (at == MAP_FAILED) fail("out of memory");
    peers = at;
    return;
  }
  if (two) result = map_one(kPiece * sizeof(float));
  for (int r = 0; r < nranks; ++r) {
    if (two) {
      staged[r] = map_one(kPiece * sizeof(float));
    } else {
      inputs[r] = map_one(most);
      outputs[r] = map_one(most);
    }
  }
}

// The sum of elements [lo, hi) of all inputs into `n` outputs; large results past the caches.
static void add(float *const *in, float *const *out, int n, size_t lo, size_t hi, int past) {
  size_t i = lo;
  for (; i < hi && ((uintptr_t)(out[0] + i) & 31) != 0; ++i) {
    float sum = in[0][i];
    for (int r = 1; r < nranks; ++r) sum += in[r][i];
    for (int o = 0; o < n; ++o) out[o][i] = sum;
  }
  for (; i + 16 <= hi; i += 16) {
    __m256 a = _mm256_loadu_ps(in[0] + i), b = _mm256_loadu_ps(in[0] + i + 8);
    for (int r = 1; r < nranks; ++r) {
      a = _mm256_add_ps(a, _mm256_loadu_ps(in[r] + i));
      b = _mm256_add_ps(b, _mm256_loadu_ps(in[r] + i + 8));
    }
    for (int o = 0; o < n; ++o) {
      if (past) {
        _mm256_stream_ps(out[o] + i, a);
        _mm256_stream_ps(out[o] + i + 8, b);
      } else {
        _mm256_storeu_ps(out[o] + i, a);
        _mm256_storeu_ps(out[o] + i + 8, b);
      }
    }
  }
  for (; i < hi; ++i) {
    float sum = in[0][i];
    for (int r = 1; r < nranks; ++r) sum += in[r][i];
    for (int o = 0; o < n; ++o) out[o][i] = sum;
  }
  _mm_sfence();
}

static void single_copy(int collective, size_t count, int root) {
  const size_t part = count / (size_t)nranks, bytes = part * sizeof(float), first = (size_t)rank * part;
  const int past = count * sizeof(float) >= 8u << 20;
  float *in[64];
  barrier();
  if (collective == kAllReduce) add(inputs, outputs, nranks, first, rank == nranks - 1 ? count : first + part, past);
  if (collective == kBroadcast && rank != root) memcpy(output, outputs[root], count * sizeof(float));
  for (int r = 0; r < nranks && collective == kAllGather; ++r) memcpy(output + (size_t)r * part, inputs[r], bytes);
  if (collective == kReduceScatter) {
    for (int r = 0; r < nranks; ++r) in[r] = inputs[r] + first;
    add(in, &output, 1, 0, part, past);
  }
  barrier();
}

static void copy(float *to, const float *from, size_t elements) { memcpy(to, from, elements * sizeof(float)); }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void staged_all_reduce(size_t count) {
  for (size_t at = 0; at < count; at += kPiece) {
    const size_t elements = least(kPiece, count - at), part = elements / (size_t)nranks, first = (size_t)rank * part;
    copy(staged[rank], input + at, elements);
    barrier();
    add(staged, &result, 1, first, rank == nranks - 1 ? elements : first + part, 0);
    barrier();
    copy(output + at, result, elements);
  }
}

static void staged_broadcast(size_t count, int root) {
  float *half = staged[root];
  for (size_t at = 0; at < count; at += kHalf) {
    const size_t elements = least(kHalf, count - at);
    if (rank == root) copy(half, output + at, elements);
    barrier();
    if (rank != root) copy(output + at, half, elements);
    half = half == staged[root] ? staged[root] + kHalf : staged[root];
  }
  barrier();
}

static void staged_all_gather(size_t part) {
  for (size_t at = 0; at < part; at += kPiece) {
    const size_t elements = least(kPiece, part - at);
    copy(staged[rank], input + at, elements);
    barrier();
    for (int r = 0; r < nranks; ++r) copy(output + (size_t)r * part + at, staged[r], elements);
    barrier();
  }
}

static void staged_reduce_scatter(size_t part) {
  const size_t stride = kPiece / (size_t)nranks / 16 * 16;
  float *in[64];
  for (size_t at = 0; at < part; at += stride) {
    const size_t elements = least(stride, part - at);
    float *const to = output + at;
    for (int r = 0; r < nranks; ++r) copy(staged[rank] + (size_t)r * stride, input + (size_t)r * part + at, elements);
    barrier();
    for (int r = 0; r < nranks; ++r) in[r] = staged[r] + (size_t)rank * stride;
    add(in, &to, 1, 0, elements, 0);
    barrier();
  }
}

static void read_from(int peer, float *to, const float *from, size_t bytes) {
  while (bytes > 0) {
    const struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
    const ssize_t copied = process_vm_readv(peers[peer].process, &here, 1, &there, 1, 0);
    if (copied <= 0) fail("the kernel does not copy");
    to += (size_t)copied / sizeof(float), from += (size_t)copied / sizeof(float), bytes -= (size_t)copied;
  }
}

static void kernel_copies(int collective, size_t count, int root) {
  const size_t part = count / (size_t)nranks;
  const size_t read = in_halves ? count / 2 : count;
  barrier();
  if (collective == kBroadcast && rank != root) read_from(root, output, peers[root].output, read * sizeof(float));
  if (collective == kBroadcast && rank == root && in_halves) {
    const int peer = 1 - root;
    const size_t bytes = (count - read) * sizeof(float);
    const struct iovec here = {output + read, bytes}, there = {peers[peer].output + read, bytes};
    if (process_vm_writev(peers[peer].process, &here, 1, &there, 1, 0) != (ssize_t)bytes) fail("the kernel does not copy");
  }
  for (int r = 0; r < nranks && collective == kAllGather; ++r) {
    if (r == rank)
      copy(output + (size_t)r * part, input, part);
    else
      read_from(r, output + (size_t)r * part, peers[r].input, part * sizeof(float));
  }
  if (collective == kAllReduce || collective == kReduceScatter) fail("the kernel adds nothing");
  barrier();
}

static void call(int collective, size_t count, int root) {
  const size_t part = count / (size_t)nranks;
  if (by_kernel)
    kernel_copies(collective, count, root);
  else if (!two_copies)
    single_copy(collective, count, root);
  else if (collective == kAllReduce)
    staged_all_reduce(count);
  else if (collective == kBroadcast)
    staged_broadcast(count, root);
  else if (collective == kAllGather)
    staged_all_gather(part);
  else
    staged_reduce_scatter(part);
}
