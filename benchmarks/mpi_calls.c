/* Collectives of MPI under another process's control: rank 0 reads lines "NAME COUNT TIMES" (floats, NCCL's count) from
 * its standard input, and prints the seconds that the slowest rank took for TIMES calls. Waiting ranks sleep: those of
 * other libraries measure in turn on the same cores. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce, kStop, kNumNames };
static const char *const kNames[kNumNames] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "stop"};

static void sleep_until_done(MPI_Request *request) {
  for (int done = 0; !done; usleep(2000)) MPI_Test(request, &done, MPI_STATUS_IGNORE);
}

static void read_order(long order[3]) {
  char name[32];
  order[0] = kStop;
  if (scanf("%31s %ld %ld", name, &order[1], &order[2]) != 3) return;
  for (int i = 0; i < kNumNames; ++i)
    if (strcmp(name, kNames[i]) == 0) order[0] = i;
}

static void call(long what, const float *in, float *out, int count) {
  switch (what) {
    case kAllReduce:
      MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kAllGather:
      MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case kReduceScatter:
      MPI_Reduce_scatter_block(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kBroadcast:
      MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    default:
      MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
      break;
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (;;) {
    long order[3];
    if (rank == 0) read_order(order);
    MPI_Request request;
    MPI_Ibcast(order, 3, MPI_LONG, 0, MPI_COMM_WORLD, &request);
    sleep_until_done(&request);
    if (order[0] == kStop) break;
    const size_t most = (size_t)order[1] * (size_t)size;
    float *in = malloc(most * sizeof *in), *out = malloc(most * sizeof *out);
    if (in == NULL || out == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < most; ++i) in[i] = out[i] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (long i = 0; i < order[2]; ++i) call(order[0], in, out, (int)order[1]);
    double mine = MPI_Wtime() - start, slowest = 0;
    MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      printf("%.9f\n", slowest);
      fflush(stdout);
    }
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
