// With -DBESIDE peerbench.c calls a library with the NCCL API and an MPI one in turn, in the same processes: what changes
// about the machine from one second to the next then changes for both. It prints a line for each round of two batches:
// NAME,collective,ranks,bytes,us,us of the MPI library,check,begin,end. Barriers are the same for both.
#ifndef BESIDE_H_
#define BESIDE_H_

static int theirs;  // whether calls go to the MPI library

// Memory of all ranks: an unnamed file of rank 0, which the others open by its number.
static void share_memory(void) {
  long place[2] = {0, 0};
  if (rank == 0) {
    const int file = memfd_create("peerbench", 0);
    if (file < 0 || ftruncate(file, sizeof *shared) != 0) fail("no shared memory");
    place[0] = getpid(), place[1] = file;
  }
  MPI_Bcast(place, 2, MPI_LONG, 0, MPI_COMM_WORLD);
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/fd/%ld", place[0], place[1]);
  const int file = open(path, O_RDWR);
  shared = (struct Shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || shared == MAP_FAILED) fail("the shared memory of rank 0 cannot be mapped");
  close(file);
}

static void start(int argc, char **argv) {
  start_mpi(argc, argv);
  crowded = nranks > sysconf(_SC_NPROCESSORS_ONLN);
  if (nranks > 64) fail("more than 64 ranks");
  share_memory();
  if (rank == 0) require(ncclGetUniqueId(&shared->id));
  barrier();
}

static void join(void) {
  stay_on_a_core();
  require(ncclCommInitRank(&communicator, nranks, shared->id, rank));
}

static void finish(void) {
  barrier();
  require(ncclCommDestroy(communicator));
  MPI_Finalize();
}

#endif
