/* What reductions of floats give at the ends of their types, on every rank, for calls of few and of many elements, in place and
 * out of place:
 *
 *   averages: every rank has the largest power of two of the type, so that a sum before the division would be too large;
 *   maxima and minima: NaN of several payloads, zeros of both signs, denormals and infinities, in every order of the ranks.
 *
 *   numerics processes|threads RANKS
 */
#include <stdint.h>

#include "launch.h"

enum { MOST = 20011, EXTREMES = 12 };

static const struct {
  ncclDataType_t type;
  int exponent, mantissa; /* bits */
} kTypes[] = {{ncclFloat16, 5, 10}, {ncclFloat32, 8, 23},   {ncclFloat64, 11, 52},
              {ncclBfloat16, 8, 7}, {ncclFloat8e4m3, 4, 3}, {ncclFloat8e5m2, 5, 2}};
enum { TYPES = sizeof kTypes / sizeof *kTypes };

typedef struct {
  ncclComm_t comm;
  int rank, type;
  unsigned char *input, *output;
} Run;

static size_t size_of(int type) { return (size_t)(1 + kTypes[type].exponent + kTypes[type].mantissa) / 8; }
static uint64_t sign_of(int type) { return (uint64_t)1 << (kTypes[type].exponent + kTypes[type].mantissa); }
/* All bits of a number but the sign's. */
static uint64_t canonical_nan(int type) { return sign_of(type) - 1; }
/* The first pattern without a sign that is a NaN, less one: infinity, or the largest number of e4m3. */
static uint64_t largest(int type) {
  const uint64_t fraction = ((uint64_t)1 << kTypes[type].mantissa) - 1;
  return kTypes[type].type == ncclFloat8e4m3 ? canonical_nan(type) - 1 : canonical_nan(type) & ~fraction;
}
static uint64_t largest_power(int type) {
  const uint64_t fraction = ((uint64_t)1 << kTypes[type].mantissa) - 1;
  return (kTypes[type].type == ncclFloat8e4m3 ? canonical_nan(type) : largest(type) - 1) & ~fraction;
}

/* One of the extremes of a type. */
static uint64_t extreme(int type, size_t which) {
  const uint64_t quiet = (uint64_t)1 << (kTypes[type].mantissa - 1), sign = sign_of(type);
  const int has_payloads = kTypes[type].type != ncclFloat8e4m3;
  switch (which % EXTREMES) {
    case 0:
      return 0;
    case 1:
      return sign;
    case 2:
      return canonical_nan(type);
    case 3:
      return canonical_nan(type) | sign;
    case 4: /* signaling */
      return has_payloads ? largest(type) + 1 : canonical_nan(type);
    case 5:
      return has_payloads ? largest(type) | quiet | sign : canonical_nan(type) | sign;
    case 6: /* the smallest denormal */
      return 1;
    case 7:
      return 1 | sign;
    case 8:
      return largest(type);
    case 9:
      return largest(type) | sign;
    case 10:
      return largest_power(type) / 2;
    default:
      return ((uint64_t)1 << kTypes[type].mantissa) - 1; /* the largest denormal */
  }
}

/* The extreme that rank r has in element i: the first three ranks have every combination within 12^3 elements. */
static uint64_t extreme_of(int type, int r, size_t i) {
  static const size_t turns[] = {1, EXTREMES, EXTREMES * EXTREMES};
  return extreme(type, r < 3 ? i / turns[r] : i * (size_t)r + i / turns[r % 3]);
}

static int64_t key(int type, uint64_t bits) {
  const int64_t magnitude = (int64_t)(bits & canonical_nan(type));
  return (bits & sign_of(type)) != 0 ? -magnitude - 1 : magnitude;
}

/* A result of 8 bits that is infinite becomes the largest number, as in CUDA's conversions. */
static uint64_t saturated(int type, uint64_t bits) {
  return kTypes[type].type == ncclFloat8e5m2 && (bits & canonical_nan(type)) == largest(type) ? bits - 1 : bits;
}

static uint64_t reduced(int type, ncclRedOp_t op, size_t i) {
  uint64_t result = canonical_nan(type);
  int r, any = 0;
  for (r = 0; r < nranks; ++r) {
    const uint64_t one = extreme_of(type, r, i);
    if ((one & canonical_nan(type)) > largest(type)) continue;
    if (!any || (op == ncclMax ? key(type, one) > key(type, result) : key(type, one) < key(type, result))) result = one;
    any = 1;
  }
  return saturated(type, result);
}

static uint64_t element(const Run *run, ncclRedOp_t op, int r, size_t i) {
  return op == ncclAvg ? largest_power(run->type) : extreme_of(run->type, r, i);
}

/* Whether elements `first` and up of `at` are what the reduction gives. */
static void look_at(const Run *run, ncclRedOp_t op, const unsigned char *at, size_t first, size_t count, const char *what) {
  const size_t size = size_of(run->type);
  size_t i;
  for (i = 0; i < count; ++i) {
    const uint64_t wanted = op == ncclAvg ? largest_power(run->type) : reduced(run->type, op, first + i);
    uint64_t got = 0;
    memcpy(&got, at + i * size, size);
    if (got == wanted) continue;
    fprintf(stderr, "%s, type %d, op %d, element %zu of %zu: 0x%llx in place of 0x%llx\n", what, (int)kTypes[run->type].type,
            (int)op, i, count, (unsigned long long)got, (unsigned long long)wanted);
    require(0, "an element");
  }
}

static void fill(Run *run, unsigned char *at, ncclRedOp_t op, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    const uint64_t bits = element(run, op, run->rank, i);
    memcpy(at + i * size_of(run->type), &bits, size_of(run->type));
  }
}

static void run_calls(Run *run, ncclRedOp_t op, size_t count, int in_place) {
  const ncclDataType_t type = kTypes[run->type].type;
  const size_t size = size_of(run->type), part = count / (size_t)nranks;
  unsigned char *const from = in_place ? run->output : run->input;
  unsigned char *const own = run->output + (in_place ? (size_t)run->rank * part * size : 0);
  fill(run, from, op, count);
  check(ncclAllReduce(from, run->output, count, type, op, run->comm, NULL), "ncclAllReduce");
  look_at(run, op, run->output, 0, count, "all_reduce");
  fill(run, from, op, count);
  check(ncclReduce(from, run->output, count, type, op, nranks - 1, run->comm, NULL), "ncclReduce");
  if (run->rank == nranks - 1) look_at(run, op, run->output, 0, count, "reduce");
  if (part == 0) return;
  fill(run, from, op, count);
  check(ncclReduceScatter(from, own, part, type, op, run->comm, NULL), "ncclReduceScatter");
  look_at(run, op, own, (size_t)run->rank * part, part, "reduce_scatter");
}

static size_t body(int rank, ncclUniqueId id) {
  static const size_t counts[] = {1, 33, 1729, MOST};
  static const ncclRedOp_t ops[] = {ncclAvg, ncclMax, ncclMin};
  Run run = {NULL, rank, 0, malloc(MOST * 8 + 8), malloc(MOST * 8 + 8)};
  size_t c, o, calls = 0;
  int in_place;
  check(ncclCommInitRank(&run.comm, nranks, id, rank), "ncclCommInitRank");
  for (run.type = 0; run.type < TYPES; ++run.type)
    for (o = 0; o < sizeof ops / sizeof *ops; ++o)
      for (c = 0; c < sizeof counts / sizeof *counts; ++c)
        for (in_place = 0; in_place < 2; ++in_place) run_calls(&run, ops[o], counts[c], in_place), ++calls;
  check(ncclCommDestroy(run.comm), "ncclCommDestroy");
  free(run.input), free(run.output);
  return rank == 0 ? calls : 0;
}

int main(int argc, char **argv) {
  size_t calls;
  if (argc != 3 || (nranks = atoi(argv[2])) < 1 || nranks > MOST_RANKS) return 2;
  calls = strcmp(argv[1], "threads") == 0 ? run_threads(body) : run_processes(body);
  printf("%zu calls\n", calls);
  return 0;
}
