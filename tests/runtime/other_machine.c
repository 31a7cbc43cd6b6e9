/* Preloaded: with OTHER_MACHINE in the environment, this process finds that it is on another machine than the others. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FILE *fopen(const char *path, const char *mode) {
  FILE *(*real)(const char *, const char *);
  *(void **)&real = dlsym(RTLD_NEXT, "fopen");
  if (strcmp(path, "/proc/sys/kernel/random/boot_id") == 0 && getenv("OTHER_MACHINE") != NULL)
    return real("/proc/sys/kernel/osrelease", mode);
  return real(path, mode);
}
