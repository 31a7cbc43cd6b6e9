/* Ends the process with a line on stderr where something is not as it should be. */
#ifndef CHECK_H
#define CHECK_H

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s: %s\n", what, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}

static inline void require(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "wrong: %s\n", what);
  exit(1);
}

#endif
