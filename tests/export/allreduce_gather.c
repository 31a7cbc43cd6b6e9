/* What MPI makes of the numbers that each rank reads from a file: RANK's COUNT 64-bit integers in FOLDER/in-RANK.
 * Writes the results of MPI_Allreduce and MPI_Allgather to FOLDER/sum-RANK and FOLDER/all-RANK. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void file(const char *folder, const char *what, int rank, const char *mode, void *data, size_t count) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s-%d", folder, what, rank);
  FILE *stream = fopen(path, mode);
  if (stream == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  const size_t done = mode[0] == 'r' ? fread(data, 8, count, stream) : fwrite(data, 8, count, stream);
  if (done != count || fclose(stream) != 0) MPI_Abort(MPI_COMM_WORLD, 4);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) MPI_Abort(MPI_COMM_WORLD, 2);
  const size_t count = strtoull(argv[2], NULL, 10);
  long long *in = calloc(count, 8), *sum = calloc(count, 8), *all = calloc(count * (size_t)ranks, 8);
  if (in == NULL || sum == NULL || all == NULL) MPI_Abort(MPI_COMM_WORLD, 5);
  file(argv[1], "in", rank, "rb", in, count);
  MPI_Allreduce(in, sum, (int)count, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allgather(in, (int)count, MPI_LONG_LONG, all, (int)count, MPI_LONG_LONG, MPI_COMM_WORLD);
  file(argv[1], "sum", rank, "wb", sum, count);
  file(argv[1], "all", rank, "wb", all, count * (size_t)ranks);
  free(in);
  free(sum);
  free(all);
  return MPI_Finalize();
}
