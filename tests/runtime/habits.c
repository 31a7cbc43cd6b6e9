/* Ranks are processes; the last of them has a habit that must not be mistaken for its death, or must not hide it.
 * Arguments: ranks; "closes" (all descriptors above 2), "forks" (a child that ends, and one that lives on), "executes" (a child that
 * executes a program); with " and dies" the rank is killed after that, and then all others must hear of it.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"

enum { COUNT = 5000, CALLS = 20 };
static const char *habit;
static int *stage; /* 1: the habit was followed */

static int has(const char *what) { return strstr(habit, what) != NULL; }

static void follow_habit(ncclComm_t comm) {
  float value = 1;
  int round, descriptor;
  for (round = 0; has("forks") && round < 2; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      /* What it inherited is its parent's. */
      require(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, NULL) == ncclInvalidUsage, "a child's call");
      if (round == 0) exit(0);
      close(1), close(2); /* nobody waits for what it prints */
      alarm(20);
      pause();
    }
    if (round == 0) waitpid(child, NULL, 0);
  }
  if (has("executes")) {
    const pid_t child = fork();
    if (child == 0) {
      execlp("true", "true", (char *)NULL);
      _exit(1);
    }
    waitpid(child, NULL, 0);
  }
  if (!has("closes")) return;
  for (descriptor = 3; descriptor < 256; ++descriptor) close(descriptor);
  /* Others take their numbers, which nobody may close. */
  for (descriptor = 3; descriptor < 40; ++descriptor) require(open("/dev/null", O_RDONLY) == descriptor, "a descriptor");
}

static void run_rank(int rank, ncclUniqueId id) {
  float in[COUNT], out[COUNT];
  ncclResult_t result = ncclSuccess;
  void *buffer = NULL;
  ncclComm_t comm;
  int i, calls = 0;
  const int last = rank == nranks - 1, mortal = has("dies");
  check(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
  check(ncclMemAlloc(&buffer, sizeof in), "ncclMemAlloc");
  for (i = 0; i < COUNT; ++i) in[i] = 1;
  check(ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, comm, NULL), "the first call");
  if (last) {
    follow_habit(comm);
    usleep(100000); /* the others look at who lives while they wait */
    stage[0] = 1;
    if (mortal) kill(getpid(), SIGKILL);
  }
  for (; result == ncclSuccess && calls < CALLS; ++calls) {
    result = ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, comm, NULL);
    if (result == ncclSuccess) require(out[COUNT - 1] == (float)nranks, "the sum");
  }
  if (mortal) {
    require(result == ncclRemoteError && strstr(ncclGetLastError(NULL), "has died") != NULL, "the death is noticed");
    require(stage[0] == 1, "and not before");
  } else {
    check(result, "a later call");
  }
  check(ncclMemFree(buffer), "ncclMemFree");
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  for (i = 3; last && has("closes") && i < 40; ++i) require(fcntl(i, F_GETFD) >= 0, "a descriptor of others stays open");
  exit(0);
}

int main(int argc, char **argv) {
  int failed = 0, rank;
  ncclUniqueId id;
  (void)argc, (void)run_threads, (void)run_processes;
  nranks = atoi(argv[1]);
  habit = argv[2];
  stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  for (rank = 0; rank < nranks; ++rank)
    if (fork() == 0) run_rank(rank, id);
  for (rank = 0; rank < nranks; ++rank) {
    int status = 0;
    wait(&status);
    failed |= WIFEXITED(status) ? WEXITSTATUS(status) : !has("dies");
  }
  if (failed) return 1;
  printf("as it should be\n");
  return 0;
}
