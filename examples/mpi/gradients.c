/* Data-parallel training's one call, as an MPI program makes it: ncclAllReduce over MPI's ranks, checked against
 * MPI_Allreduce element by element, both timed.
 *
 *   make && mpirun -np 8 ./gradients [BYTES]
 *
 * It is linked with -lnccl like any program for NCCL. Its buffers are host memory, which libraries of
 * `collc compile --target host` take; for GPUs, allocate them with cudaMalloc and give the calls a stream.
 */
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 20 };

static void check(ncclResult_t status, const char *call) {
  const char *why = ncclGetLastError(NULL);
  if (status == ncclSuccess) return;
  fprintf(stderr, "%s: %s\n", call, why && *why ? why : ncclGetErrorString(status));
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes) {
  void *memory = NULL;
  check(ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
  return memory;
}

int main(int argc, char **argv) {
  const size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)4 << 20;
  const size_t count = bytes / sizeof(float);
  int rank, ranks, round;
  size_t i;
  long long wrong = 0;
  double began, by_nccl, by_mpi;
  float *gradient, *sum, *expected;
  ncclUniqueId id;
  ncclComm_t comm;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  /* One rank makes the id, and MPI tells the others. */
  if (rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  check(ncclCommInitRank(&comm, ranks, id, rank), "ncclCommInitRank");

  /* Whole numbers: their sum is the same in every order. ncclMemAlloc's memory is what peers can read. */
  gradient = allocate(bytes);
  sum = allocate(bytes);
  expected = malloc(bytes);
  if (expected == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  for (i = 0; i < count; ++i) gradient[i] = (float)((i * 31 + (size_t)rank * 7) % 1000);

  MPI_Barrier(MPI_COMM_WORLD);
  began = MPI_Wtime();
  for (round = 0; round < ROUNDS; ++round)
    check(ncclAllReduce(gradient, sum, count, ncclFloat, ncclSum, comm, NULL), "ncclAllReduce");
  by_nccl = (MPI_Wtime() - began) / ROUNDS;

  MPI_Barrier(MPI_COMM_WORLD);
  began = MPI_Wtime();
  for (round = 0; round < ROUNDS; ++round) MPI_Allreduce(gradient, expected, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  by_mpi = (MPI_Wtime() - began) / ROUNDS;

  for (i = 0; i < count; ++i) wrong += sum[i] != expected[i];
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks, %zu bytes: ncclAllReduce %.0f us, MPI_Allreduce %.0f us, %lld wrong\n", ranks, bytes, by_nccl * 1e6,
           by_mpi * 1e6, wrong);

  check(ncclMemFree(gradient), "ncclMemFree");
  check(ncclMemFree(sum), "ncclMemFree");
  free(expected);
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  MPI_Finalize();
  return wrong != 0;
}
