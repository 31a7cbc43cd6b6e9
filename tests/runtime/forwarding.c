/* Communicators that the library serves beside ones that the real NCCL has to take; one process, one thread per group.
 * Arguments: the number of ranks that the library serves. Prints what the caller saw.
 */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return;
  printf("%s: %d: %s\n", what, result, ncclGetLastError(NULL));
  exit(1);
}

int main(int argc, char **argv) {
  enum { MOST = 8 };
  const int served = argc == 2 ? atoi(argv[1]) : 0;
  ncclComm_t ours[MOST], theirs[2], part = NULL;
  unsigned char mine[MOST][64], other[2][64];
  ncclWindow_t window;
  ncclResult_t state;
  int r, count = 0;
  if (served < 3 || served > MOST) return 2;
  check(ncclCommInitAll(theirs, 2, NULL), "a communicator of 2");
  check(ncclCommInitAll(ours, served, NULL), "a communicator that is served");
  memset(mine, 1, sizeof mine);
  memset(other, 1, sizeof other);
  check(ncclGroupStart(), "ncclGroupStart");
  for (r = 0; r < served; ++r) check(ncclAllReduce(mine[r], mine[r], 64, ncclUint8, ncclSum, ours[r], NULL), "ours");
  for (r = 0; r < 2; ++r) check(ncclAllReduce(other[r], other[r], 64, ncclUint8, ncclSum, theirs[r], NULL), "theirs");
  check(ncclGroupEnd(), "ncclGroupEnd");
  check(ncclAllReduce(other[0], other[0], 64, ncclUint8, ncclSum, theirs[0], NULL), "theirs, without a group");
  check(ncclCommCount(theirs[1], &count), "ncclCommCount");
  check(ncclCommGetAsyncError(theirs[1], &state), "ncclCommGetAsyncError");
  check(ncclCommSplit(theirs[0], 0, 0, &part, NULL), "ncclCommSplit");
  check(ncclCommWindowRegister(theirs[0], other, 64, &window, 0), "ncclCommWindowRegister");
  check(ncclCommWindowRegister(ours[0], other, 64, &window, 0), "ncclCommWindowRegister of ours");
  printf("ours %d theirs %d count %d state %d window %d\n", mine[0][63], other[1][63], count, state, window != NULL);
  check(ncclCommDestroy(part), "ncclCommDestroy");
  for (r = 0; r < served; ++r) check(ncclCommDestroy(ours[r]), "ncclCommDestroy");
  check(ncclCommDestroy(theirs[0]), "ncclCommDestroy");
  check(ncclCommAbort(theirs[1]), "ncclCommAbort");
  return 0;
}
