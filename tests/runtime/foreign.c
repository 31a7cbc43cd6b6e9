/* ncclMemFree takes what ncclMemAlloc gave, once, and nothing else. */
#include <string.h>

#include "check.h"

static void refused(void *memory, const char *words, const char *what) {
  require(ncclMemFree(memory) == ncclInvalidArgument, what);
  require(strstr(ncclGetLastError(NULL), words) != NULL, ncclGetLastError(NULL));
}

int main(void) {
  void *buffer = NULL, *other = NULL, *own = malloc(100);
  int on_stack = 0;
  check(ncclMemFree(NULL), "nothing is freed");
  check(ncclMemAlloc(&buffer, 100000), "ncclMemAlloc");
  check(ncclMemAlloc(&other, 1), "ncclMemAlloc");
  memset(buffer, 1, 100000);
  refused(own, "is no buffer of ncclMemAlloc", "malloc's memory");
  refused(&on_stack, "is no buffer of ncclMemAlloc", "a variable");
  refused((char *)buffer + 1, "lies within a buffer of ncclMemAlloc", "a pointer into the middle");
  refused((char *)buffer + 99999, "lies within a buffer of ncclMemAlloc", "the last byte");
  require(((char *)buffer)[99999] == 1, "the buffer is still there");
  check(ncclMemFree(buffer), "ncclMemFree");
  refused(buffer, "was freed before", "twice");
  check(ncclMemFree(other), "ncclMemFree");
  refused(other, "was freed before", "twice");
  free(own);
  printf("all refused\n");
  return 0;
}
